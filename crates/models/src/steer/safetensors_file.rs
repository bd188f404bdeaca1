//! Steering vectors in a safetensors file: one tensor `layers.N.resid_post` per layer.
//!
//! Other names of a tensor are read, too: `direction.N` as in GGUF files, `layers.N`, `layer.N`, or
//! the number alone.

use super::info::{KEY, SteeringInfo};
use super::vectors::{SteeringVectors, from_tensors};
use crate::checkpoint::Checkpoint;
use crate::tensors::plain;
use crate::{Error, Result};
use pellucid_engine::Site;
use pellucid_kernels::encoding;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;

pub(super) fn read(path: &Path) -> Result<SteeringVectors> {
    let checkpoint = Checkpoint::open_file(path)?;
    let info = match checkpoint.metadata()?.into_iter().find(|(key, _)| key == KEY) {
        Some((_, json)) => SteeringInfo::parse(&json, path)?,
        None => SteeringInfo::default(),
    };
    let tensors = checkpoint.tensors().map(|tensor| {
        let stored = plain(&checkpoint, &tensor.name).ok_or_else(|| {
            Error::invalid(path, format!("tensor `{}` cannot be read", tensor.name), "save the file again")
        })?;
        let encoding = stored.encoding.map_err(|format| {
            Error::invalid(
                path,
                format!("tensor `{}` is stored as {format}", tensor.name),
                "store directions as F32, F16 or BF16",
            )
        })?;
        // The product is in bounds: the header check compared it with the tensor's bytes.
        let mut values = vec![0.0; tensor.elements()];
        encoding::decode(encoding, stored.bytes, &mut values);
        Ok((tensor.name.clone(), tensor.shape.clone(), values))
    });
    from_tensors(path, tensors, info)
}

pub(super) fn write(vectors: &SteeringVectors) -> Result<Vec<u8>> {
    let data: Vec<(String, Vec<u8>)> = vectors
        .directions()
        .iter()
        .map(|(&layer, direction)| {
            let bytes = direction.iter().flat_map(|x| x.to_le_bytes()).collect();
            (Site::layer(layer, vectors.point()).to_string(), bytes)
        })
        .collect();
    let failed = |error: safetensors::SafeTensorError| {
        Error::usage(format!("the vectors cannot be saved: {error}"), "save fewer layers")
    };
    let mut views = Vec::with_capacity(data.len());
    for (name, bytes) in &data {
        views.push((name, TensorView::new(Dtype::F32, vec![vectors.width()], bytes).map_err(failed)?));
    }
    let metadata = HashMap::from([(KEY.to_owned(), vectors.info.to_json())]);
    safetensors::serialize(views, Some(metadata)).map_err(failed)
}
