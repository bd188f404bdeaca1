//! Forecasts of loads agree with the loads.

use golden::temp_models::copy;
use pellucid_kernels::DType;
use pellucid_models::{LoadOptions, LoadedModel, Storage, forecast};
use std::path::Path;

#[test]
fn a_forecast_has_the_bytes_and_formats_of_the_load() {
    let quantized: Vec<_> = ["gptq-4", "awq", "bnb-nf4", "fp8-blocks"]
        .map(golden::quantized)
        .into_iter()
        .filter(|path| path.is_dir())
        .collect();
    let models = ["llama", "gpt2", "gemma2", "mixtral", "mamba"].map(golden::path);
    for path in models.iter().chain(&quantized).map(|path| Some(path.as_path())).chain([None]) {
        for storage in [Storage::AsStored, Storage::As(DType::Bf16), Storage::As(DType::Q8)] {
            let options = LoadOptions { storage, ..LoadOptions::default() };
            let loaded = LoadedModel::load(path, &options, &mut |_| {}).expect("a model");
            let (ours, bytes) = (forecast(path, &options).expect("a forecast"), loaded.model.weights().bytes());
            let architecture = loaded.model.program().architecture();
            assert_eq!(ours.family, architecture.family);
            assert_eq!((ours.layers, ours.context), (architecture.layers.len(), architecture.context));
            // Dequantized weights may be packed smaller than f32, never larger.
            let is_exact = path.is_none_or(|path| !quantized.iter().any(|other| other == path));
            assert!(ours.weight_bytes >= bytes, "{path:?} {storage:?}: {} of {bytes}", ours.weight_bytes);
            assert!(
                !is_exact || ours.weight_bytes <= bytes + bytes / 20,
                "{path:?} {storage:?}: {} of {bytes}",
                ours.weight_bytes
            );
            assert!(!is_exact || ours.storage == loaded.storage(), "{path:?} {storage:?}: {}", ours.storage);
        }
    }
}

#[test]
fn a_forecast_fails_as_the_load_does() {
    let directory = copy("llama");
    std::fs::remove_file(directory.path().join("model.safetensors")).expect("removed");
    let options = LoadOptions::default();
    for path in [directory.path(), Path::new("/absent/model")] {
        let ours = forecast(Some(path), &options).expect_err("no weights").to_string();
        let load = LoadedModel::open(path, &options, &mut |_| {}).err().expect("no weights").to_string();
        assert_eq!(ours, load);
    }
}
