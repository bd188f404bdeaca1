//! The file of a golden case: reference, gradients, configuration and the manifest of the weights
//! in one safetensors file (written by tests/golden/case_file.py).

use crate::root;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Tensors by name: shape and values.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Name prefixes of the gradients; other tensors are the reference.
const GRADIENT: &str = "gradient/";
const WEIGHT_GRADIENT: &str = "weight_gradient/";

/// The file of a case.
pub struct CaseFile {
    bytes: Vec<u8>,
    /// `config.json`.
    pub config: Value,
    /// Manifest from which `weights` generates the weights.
    pub manifest: Value,
}

/// Directory of the case files.
pub fn directory() -> PathBuf {
    root().join("cases")
}

impl CaseFile {
    /// Reads the file of a case.
    pub fn read(name: &str) -> CaseFile {
        let file = directory().join(format!("{name}.safetensors"));
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a valid case");
        let case =
            header.metadata().as_ref().and_then(|metadata| metadata.get("case")).expect("a case in the metadata");
        let mut case: Value = serde_json::from_str(case).expect("JSON");
        CaseFile { config: case["config"].take(), manifest: case["weights"].take(), bytes }
    }

    /// Seed of the weights.
    pub fn seed(&self) -> u64 {
        self.manifest["seed"].as_u64().expect("a seed")
    }

    /// The tensors that transformers computed; tests/golden/generate.py lists them.
    pub fn reference(&self) -> Tensors {
        self.tensors(|name| (!name.contains('/')).then_some(name))
    }

    /// Gradients at sites, computed by torch (tests/golden/gradients.py); empty for most cases.
    pub fn gradients(&self) -> Tensors {
        self.tensors(|name| name.strip_prefix(GRADIENT))
    }

    /// Gradients of weights, computed by torch, by the engine's names; empty for most cases.
    pub fn weight_gradients(&self) -> Tensors {
        self.tensors(|name| name.strip_prefix(WEIGHT_GRADIENT))
    }

    /// Reads the tensors for which `rename` returns a name, under that name.
    fn tensors(&self, rename: impl Fn(&str) -> Option<&str>) -> Tensors {
        let tensors = read_tensors(&self.bytes).into_iter();
        tensors.filter_map(|(name, tensor)| Some((rename(&name)?.to_owned(), tensor))).collect()
    }
}

/// Reads the tensors of a safetensors file as f32.
pub(crate) fn read_tensors(bytes: &[u8]) -> Tensors {
    let file = SafeTensors::deserialize(bytes).expect("a valid case");
    let read = |(name, tensor): (&str, safetensors::tensor::TensorView)| {
        let values = match tensor.dtype() {
            Dtype::I64 => {
                tensor.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect()
            }
            Dtype::F32 => tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            other => panic!("{name}: {other:?}"),
        };
        (name.to_owned(), (tensor.shape().to_vec(), values))
    };
    file.iter().map(read).collect()
}
