//! Modified copies of golden models in temporary directories.

use crate::path;
use pellucid_engine::{Plan, RunOptions};
use pellucid_models::LoadedModel;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// The tensors of a file by name: dtype, shape, bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Reads the tensors of a safetensors file.
pub fn read(file: &Path) -> Tensors {
    let bytes = std::fs::read(file).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let tensor = |(name, t): (String, TensorView)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec()));
    file.tensors().into_iter().map(tensor).collect()
}

/// Writes a safetensors file.
pub fn write(file: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("a file");
    std::fs::write(file, bytes).expect("written");
}

/// Copies a golden model.
pub fn copy(name: &str) -> TempDir {
    let to = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(path(name)).expect("a golden model").flatten() {
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).expect("copied");
    }
    to
}

/// Copies a golden model and changes its configuration.
pub fn with_config(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let to = copy(name);
    let file = to.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).expect("a config")).expect("JSON");
    change(&mut config);
    std::fs::write(&file, config.to_string()).expect("written");
    to
}

/// Copies a golden model and changes its configuration and tensors.
pub fn changed(name: &str, config: impl FnOnce(&mut Value), weights: impl FnOnce(&mut Tensors)) -> TempDir {
    let (from, to) = (path(name), tempfile::tempdir().expect("a directory"));
    let mut value: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).expect("a config")).expect("JSON");
    config(&mut value);
    std::fs::write(to.path().join("config.json"), value.to_string()).expect("written");
    let mut tensors = read(&from.join("model.safetensors"));
    weights(&mut tensors);
    write(&to.path().join("model.safetensors"), &tensors);
    to
}

/// Copies a golden model and renames its tensors.
pub fn renamed(name: &str, rename: impl Fn(&str) -> String) -> TempDir {
    changed(
        name,
        |_| {},
        |tensors| {
            *tensors = std::mem::take(tensors).into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        },
    )
}

/// Returns the bits of a model's logits for four tokens.
pub fn logits(loaded: &LoadedModel) -> Vec<u32> {
    let run = loaded.model.run(&[vec![5, 6, 7, 8]], &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
    run.captures[0].array.values().iter().map(|x| x.to_bits()).collect()
}
