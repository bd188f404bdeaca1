//! Unmerged LoRA adapters: several on one model, a different one per row, equal to the merged model
//! within rounding, and without any effect on rows that do not use them.

mod gradients;
mod parity;
mod refused;
mod rows;

use golden::temp_models::{Tensors, read, write};
use pellucid_engine::{Array, Plan, RowAdapters, Run, RunOptions};
use pellucid_models::{LoadOptions, LoadedModel};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

const RANK: usize = 3;

/// Last parts of the names of projections, in all families.
const PROJECTIONS: [&str; 32] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "qkv_proj",
    "c_attn",
    "c_fc",
    "c_proj",
    "query_key_value",
    "dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "fc1",
    "fc2",
    "fc_in",
    "fc_out",
    "in_proj",
    "x_proj",
    "dt_proj",
    "Wqkv",
    "query",
    "key",
    "value",
    "receptance",
    "output",
    "lm_head",
    "q_a_proj",
];

/// Writes an adapter of rank 3 for the projections of a model that `wanted` accepts.
fn adapter_for(model: &Path, seed: u64, wanted: impl Fn(&str) -> bool) -> TempDir {
    adapter_of_rank(model, seed, RANK, wanted)
}

fn adapter_of_rank(model: &Path, seed: u64, rank: usize, wanted: impl Fn(&str) -> bool) -> TempDir {
    let config: Value =
        serde_json::from_slice(&std::fs::read(model.join("config.json")).expect("a config")).expect("JSON");
    // GPT-2 stores its projections transposed.
    let transposed = config["model_type"] == "gpt2" || config["model_type"] == "openai-gpt";
    let mut tensors = Tensors::new();
    for (name, (_, shape, _)) in read(&model.join("model.safetensors")) {
        let Some(module) = name.strip_suffix(".weight").filter(|module| wanted(module)) else { continue };
        let last = module.rsplit('.').next().unwrap_or_default();
        let [mut outputs, mut inputs] = shape[..] else { continue };
        if !PROJECTIONS.contains(&last) || module.contains(".experts.") {
            continue;
        }
        if transposed && last.starts_with("c_") {
            std::mem::swap(&mut outputs, &mut inputs);
        }
        for (factor, shape, scale) in [("A", [rank, inputs], 0.3), ("B", [outputs, rank], 0.2)] {
            let name = format!("base_model.model.{module}.lora_{factor}.weight");
            let floats = golden::weights::standard(seed, &name).take(shape[0] * shape[1]);
            let bytes = floats.flat_map(|x| (x * scale).to_le_bytes()).collect();
            tensors.insert(name, (Dtype::F32, shape.to_vec(), bytes));
        }
    }
    write_adapter(rank, &tensors)
}

fn write_adapter(rank: usize, tensors: &Tensors) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank});
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).expect("written");
    write(&directory.path().join("adapter_model.safetensors"), tensors);
    directory
}

/// Loads a model with merged adapters.
fn open(model: &Path, merged: &[&Path]) -> pellucid_models::Result<LoadedModel> {
    let adapters = merged.iter().map(|path| path.to_path_buf()).collect();
    LoadedModel::open(model, &LoadOptions { adapters, ..LoadOptions::default() }, &mut |_| {})
}

/// Opens the golden Llama with two attached adapters, `a` and `b`.
fn llama_with_two() -> LoadedModel {
    let path = golden::path("llama");
    let mut loaded = open(&path, &[]).expect("a model");
    for (name, seed) in [("a", 1), ("b", 2)] {
        let adapter = adapter_of_rank(&path, seed, seed as usize + 1, |_| true);
        loaded.attach_adapter(name, adapter.path()).expect("an adapter");
    }
    loaded
}

fn run(loaded: &LoadedModel, rows: &[Vec<u32>], plan: &Plan, adapters: RowAdapters) -> Run {
    loaded.model.run(rows, plan, &RunOptions { adapters, ..RunOptions::default() }).expect("a run")
}

fn logits(loaded: &LoadedModel, ids: &[u32], adapters: RowAdapters) -> Array {
    run(loaded, &[ids.to_vec()], &Plan::capture(["logits"]), adapters).captures.remove(0).array
}

/// The largest difference, relative to the largest element of `truth`.
fn relative(ours: &[f32], truth: &[f32]) -> f32 {
    golden::difference(ours, truth) / truth.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
}
