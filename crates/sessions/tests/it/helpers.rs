//! Sessions of the tests, and an independent way to their model.

use pellucid_models::attach::AttachOptions;
use pellucid_models::sae::read_named_sae;
use pellucid_models::{Error, LoadOptions, LoadedModel, Result};
use pellucid_sessions::config::ConfigSource;
use pellucid_sessions::ops::Registry;
use pellucid_sessions::session::Outcome;
use pellucid_sessions::{RunOptions, Session, Store};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sessions")
}

/// An example session with other settings.
pub fn example(name: &str, settings: Value) -> Vec<ConfigSource> {
    vec![ConfigSource::File(examples().join(name)), ConfigSource::Json(settings)]
}

pub fn open(sources: &[ConfigSource]) -> Result<Session> {
    Session::open(sources, &Registry::default(), None, &mut |_| {})
}

pub fn run_sources(sources: &[ConfigSource]) -> Result<Outcome> {
    open(sources)?.run(&RunOptions::default(), &mut |_| {})
}

/// Runs an example session into a directory, with other settings.
pub fn run(name: &str, output: &Path, mut settings: Value) -> Store {
    settings["output"]["path"] = json!(output);
    run_sources(&example(name, settings)).unwrap_or_else(|error| panic!("{name}: {error}")).store
}

/// Message and remedy of an error.
pub fn error_of<T>(result: Result<T>) -> (String, String) {
    let error: Error = match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => error,
    };
    (error.to_string(), error.remedy().map(|remedy| remedy.to_string()).unwrap_or_default())
}

/// The built-in model, with its autoencoder at layer 3 and those of `more`.
pub fn model(more: &[&Path]) -> LoadedModel {
    let mut model = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
    let own = read_named_sae("builtin").expect("its autoencoder");
    for path in more {
        let sae = pellucid_models::sae::read_sae(path).expect("an autoencoder");
        model.attach_sae(&sae, &AttachOptions { site: None, unchecked: true }).expect("attached");
    }
    model.attach_sae(&own, &AttachOptions::default()).expect("attached");
    model
}

pub fn plain_model() -> LoadedModel {
    LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model")
}

/// Writes a random ReLU autoencoder of SAELens' format for `blocks.{layer}.{point}` of the built-in
/// model.
pub fn write_sae(directory: &Path, hook: &str, features: usize) -> PathBuf {
    let path = directory.join(hook.replace('.', "_"));
    std::fs::create_dir_all(&path).expect("a directory");
    let width = 128;
    let config = json!({
        "architecture": "standard", "d_in": width, "d_sae": features, "dtype": "float32",
        "apply_b_dec_to_input": true, "normalize_activations": "none", "reshape_activations": "none",
        "metadata": {"hook_name": hook, "model_name": "builtin", "prepend_bos": true},
    });
    std::fs::write(path.join("cfg.json"), config.to_string()).expect("written");
    let mut state = 7_u64;
    let mut random = |count: usize, scale: f32| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        (0..count).flat_map(|_| next().to_le_bytes()).collect()
    };
    let tensors = [
        ("W_enc", vec![width, features], random(width * features, 0.3)),
        ("W_dec", vec![features, width], random(width * features, 0.1)),
        ("b_enc", vec![features], random(features, 0.5)),
        ("b_dec", vec![width], random(width, 0.1)),
    ];
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (*name, view.expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &path.join("sae_weights.safetensors")).expect("written");
    path
}
