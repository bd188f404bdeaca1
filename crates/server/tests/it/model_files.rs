//! Models and adapters in temporary directories.

use golden::temp_models::{Tensors, read, write};
use pellucid_models::{LoadOptions, builtin};
use pellucid_server::ModelFiles;
use safetensors::Dtype;
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

/// The files of a model without adapters.
pub fn files(id: &str, path: &Path) -> ModelFiles {
    ModelFiles {
        id: id.into(),
        path: Some(path.to_owned()),
        options: LoadOptions::default(),
        saes: Vec::new(),
        adapters: Vec::new(),
        chat: None,
    }
}

/// The built-in model as a directory.
pub fn stories() -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let parts = [
        ("config.json", builtin::CONFIG),
        ("model.safetensors", builtin::WEIGHTS),
        ("tokenizer.json", builtin::TOKENIZER),
    ];
    for (name, contents) in parts {
        std::fs::write(directory.path().join(name), contents).expect("written");
    }
    directory
}

/// An adapter of rank 2 for all attention and MLP projections of a model.
pub fn adapter(model: &Path, seed: u64) -> TempDir {
    let mut tensors = Tensors::new();
    for (name, (_, shape, _)) in read(&model.join("model.safetensors")) {
        let Some(module) = name.strip_suffix("_proj.weight") else { continue };
        for (factor, shape, scale) in [("A", [2, shape[1]], 0.1), ("B", [shape[0], 2], 0.1)] {
            let name = format!("base_model.model.{module}_proj.lora_{factor}.weight");
            let floats = golden::weights::standard(seed, &name).take(shape[0] * shape[1]);
            let bytes = floats.flat_map(|x| (x * scale).to_le_bytes()).collect();
            tensors.insert(name, (Dtype::F32, shape.to_vec(), bytes));
        }
    }
    let directory = tempfile::tempdir().expect("a directory");
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4});
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).expect("written");
    write(&directory.path().join("adapter_model.safetensors"), &tensors);
    directory
}
