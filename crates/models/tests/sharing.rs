//! Models loaded from the same files share their weights, which are mapped and packed once, kept
//! while a model uses them, and loaded again after a file changed. One test, because the counters
//! are global to the process.

use golden::temp_models::{self, logits};
use pellucid_kernels::DType;
use pellucid_models::share::counts;
use pellucid_models::{LoadOptions, LoadedModel, Storage};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

fn open(dir: &Path, options: &LoadOptions) -> LoadedModel {
    LoadedModel::open(dir, options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_same_files_are_loaded_once() {
    let dir = temp_models::changed("llama", |_| {}, |_| {});
    let (plain, before) = (LoadOptions::default(), counts());

    // Eight threads at once: one of them loads.
    let (start, packed) = (Barrier::new(8), AtomicUsize::new(0));
    let models: Vec<LoadedModel> = std::thread::scope(|scope| {
        let load = || {
            start.wait();
            let mut progress = |_| {
                packed.fetch_add(1, Ordering::Relaxed);
            };
            LoadedModel::open(dir.path(), &LoadOptions::default(), &mut progress).expect("a model")
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let after = counts();
    assert_eq!((after.loaded - before.loaded, after.shared - before.shared), (1, 7));
    assert_eq!(packed.load(Ordering::Relaxed), models[0].model.program().weights().len(), "packed once");
    assert!(models.iter().all(|other| other.model.shares_weights_with(&models[0].model)));
    assert!(models.iter().all(|other| logits(other) == logits(&models[0])));

    // Another path to the same files shares; another format does not.
    std::fs::create_dir(dir.path().join("inside")).expect("a directory");
    assert!(open(&dir.path().join("inside/.."), &plain).model.shares_weights_with(&models[0].model));
    let narrow = LoadOptions { storage: Storage::As(DType::Bf16), ..LoadOptions::default() };
    assert!(!open(dir.path(), &narrow).model.shares_weights_with(&models[0].model));

    // A clone of the engine's model keeps the weights alive, too; they are freed with the last
    // user.
    let (engine, loaded) = (models[0].model.clone(), counts().loaded);
    drop(models);
    assert!(open(dir.path(), &plain).model.shares_weights_with(&engine));
    assert_eq!(counts().loaded, loaded);
    drop(engine);
    let first = open(dir.path(), &plain);
    assert_eq!(counts().loaded, loaded + 1);

    // A changed file is loaded again, even while its old weights are in use.
    let path = dir.path().join("model.safetensors");
    let mut tensors = temp_models::read(&path);
    tensors.get_mut("model.norm.weight").expect("a norm").2[..4].copy_from_slice(&2.5f32.to_le_bytes());
    temp_models::write(&path, &tensors);
    let second = open(dir.path(), &plain);
    assert!(!second.model.shares_weights_with(&first.model));
    assert_ne!(logits(&second), logits(&first));

    // A failed load is not shared; the next one tries again.
    let whole = std::fs::read(&path).expect("weights");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    assert!(LoadedModel::open(dir.path(), &plain, &mut |_| {}).is_err());
    std::fs::write(&path, &whole).expect("written");
    assert_eq!(logits(&open(dir.path(), &plain)), logits(&second));

    // The built-in model is shared as well.
    let (one, two) = (LoadedModel::builtin(&plain).expect("built in"), LoadedModel::builtin(&plain).expect("built in"));
    assert!(one.model.shares_weights_with(&two.model));
}
