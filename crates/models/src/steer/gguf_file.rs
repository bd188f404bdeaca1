//! GGUF control vectors, as llama.cpp and repeng write and read them.
//!
//! `general.architecture` is `controlvector`; `controlvector.model_hint` names the model's type and
//! `controlvector.layer_count` counts the directions. Tensor `direction.N` is an f32 vector that
//! llama.cpp adds to the output of layer N, counted from 0. llama.cpp has no direction for layer 0
//! and rejects a file with one.

use super::info::{KEY, SteeringInfo};
use super::vectors::{SteeringVectors, from_tensors};
use crate::gguf::{GgufFile, Writer};
use crate::{Error, Result};
use pellucid_engine::Point;
use pellucid_kernels::encoding::{self, Encoding};
use std::path::Path;

const ARCHITECTURE: &str = "controlvector";
const MODEL_HINT: &str = "controlvector.model_hint";
const LAYER_COUNT: &str = "controlvector.layer_count";

pub(super) fn read(path: &Path) -> Result<SteeringVectors> {
    let file = GgufFile::open(path)?;
    let architecture = file.architecture()?;
    if architecture != ARCHITECTURE {
        return Err(Error::invalid(
            path,
            format!("a GGUF file of architecture `{architecture}`, not `{ARCHITECTURE}`"),
            "give a control vector; a model is not one",
        ));
    }
    let mut info = match file.text(KEY)? {
        Some(json) => SteeringInfo::parse(json, path)?,
        None => SteeringInfo::default(),
    };
    if let Some(hint) = file.text(MODEL_HINT)? {
        info.model_type = Some(hint.to_owned());
    }
    let tensors = file.tensors().iter().map(|tensor| {
        if !matches!(tensor.encoding, Encoding::F32 | Encoding::F16 | Encoding::BF16) {
            return Err(Error::invalid(
                path,
                format!("tensor `{}` is stored as {}", tensor.name, tensor.encoding),
                "store directions as F32",
            ));
        }
        // The product is in bounds: the header check compared it with the tensor's bytes.
        let mut values = vec![0.0; tensor.shape.iter().product()];
        encoding::decode(tensor.encoding, file.bytes(tensor), &mut values);
        Ok((tensor.name.clone(), tensor.shape.clone(), values))
    });
    from_tensors(path, tensors, info)
}

/// Checks that a control vector can hold directions for this point and these layers.
pub(super) fn check<'a>(point: Point, layers: impl IntoIterator<Item = &'a usize>) -> Result<()> {
    if point != Point::ResidPost {
        return Err(Error::usage(
            format!("a GGUF control vector steers `resid_post`; these vectors are for `{}`", point.info().name),
            "save them as .safetensors",
        ));
    }
    if layers.into_iter().any(|&layer| layer == 0) {
        return Err(Error::usage(
            "a GGUF control vector has no direction for layer 0: llama.cpp rejects one",
            "leave layer 0 out, or save the vectors as .safetensors",
        ));
    }
    Ok(())
}

/// Returns the bytes of a file; [`check`] has accepted the vectors.
pub(super) fn write(vectors: &SteeringVectors) -> Vec<u8> {
    let mut file = Writer::default();
    file.text("general.architecture", ARCHITECTURE)
        .text(MODEL_HINT, vectors.info.model_type.as_deref().unwrap_or_default())
        .u32(LAYER_COUNT, vectors.directions().len() as u32)
        .text(KEY, &vectors.info.to_json());
    for (layer, direction) in vectors.directions() {
        file.tensor(&format!("direction.{layer}"), &[direction.len() as u64], direction);
    }
    file.bytes()
}
