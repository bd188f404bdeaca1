//! Files that change while a model or autoencoder reads them in place.

use crate::gguf_files;
use golden::last_logits;
use pellucid_engine::{GenerateOptions, Plan, RunOptions};
use pellucid_models::{LoadOptions, LoadedModel, StopStrings};
use std::fs::{File, FileTimes, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A model of Q2_K weights in a directory of its own.
fn loaded(dir: &Path) -> (PathBuf, LoadedModel) {
    let path = dir.join("model.gguf");
    std::fs::write(&path, gguf_files::in_place_llama()).expect("written");
    let loaded = LoadedModel::open(&path, &LoadOptions::default(), &mut |_| {}).expect("a model");
    assert_eq!(loaded.slow_formats(), ["Q2_K"], "the weights are read in place");
    (path, loaded)
}

fn logits(loaded: &LoadedModel) -> Result<Vec<f32>, String> {
    let run = loaded.model.run(&[vec![1, 2, 3]], &Plan::of([last_logits()]), &RunOptions::default());
    run.map(|run| run.captures[0].array.values().to_vec()).map_err(|error| error.to_string())
}

/// The end of the last tensor, `blk.0.ffn_norm.weight`.
fn overwrite_end(path: &Path) {
    let mut file = OpenOptions::new().write(true).open(path).expect("opens");
    file.seek(SeekFrom::End(-4)).expect("seeks");
    file.write_all(&2.5f32.to_le_bytes()).expect("written");
}

fn truncate(path: &Path) {
    OpenOptions::new().write(true).open(path).expect("opens").set_len(8192).expect("cut");
}

/// Reading past the end of a mapped file is SIGBUS, so without the check this test would not fail
/// but end the process.
#[test]
fn f11_a_file_truncated_while_in_use_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, loaded) = loaded(dir.path());
    let before = logits(&loaded).expect("runs");
    truncate(&path);
    let error = logits(&loaded).expect_err("truncated");
    assert!(error.contains("model.gguf: the file has 8192 bytes; it had "), "{error}");
    let generate = |max_new| {
        let options = GenerateOptions { max_new, ..GenerateOptions::default() };
        loaded.generate(&[vec![1]], &Plan::default(), &options, &StopStrings::default(), &mut |_| {}).map(drop)
    };
    assert!(generate(2).expect_err("truncated").to_string().contains("the file has 8192 bytes"));
    // The same file again, written beside it and renamed, loads and gives the same logits.
    let whole = dir.path().join("whole");
    std::fs::write(&whole, gguf_files::in_place_llama()).expect("written");
    std::fs::rename(&whole, &path).expect("renamed");
    let again = LoadedModel::open(&path, &LoadOptions::default(), &mut |_| {}).expect("a model");
    assert_eq!(logits(&again).expect("runs"), before);
}

#[test]
fn f11_a_generation_ends_with_an_error_if_its_file_is_truncated() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, loaded) = loaded(dir.path());
    let options = GenerateOptions { max_new: 20, ..GenerateOptions::default() };
    let mut tokens = 0;
    let result = loaded.generate(&[vec![1]], &Plan::default(), &options, &StopStrings::default(), &mut |_| {
        tokens += 1;
        if tokens == 3 {
            truncate(&path);
        }
    });
    assert!(result.expect_err("truncated").to_string().contains("the file has 8192 bytes"));
    assert_eq!(tokens, 3, "the next pass is not started");
}

#[test]
fn f11_a_file_written_while_in_use_is_an_error_even_with_its_old_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, loaded) = loaded(dir.path());
    let time = std::fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("a time");
    logits(&loaded).expect("runs");
    // Time stamps may be as coarse as the system's clock tick.
    std::thread::sleep(Duration::from_millis(20));
    overwrite_end(&path);
    let error = logits(&loaded).expect_err("changed");
    assert!(error.contains("model.gguf: the file was written to after it was opened"), "{error}");
    set_time(&path, time);
    assert_eq!(logits(&loaded).is_err(), cfg!(unix), "rsync -t sets the old time");
    // A second load must not share the weights of the first.
    let again = LoadedModel::open(&path, &LoadOptions::default(), &mut |_| {}).expect("a model");
    let norm = |loaded: &LoadedModel| {
        let id = loaded.model.program().weight_named("layers.0.mlp.norm.gain").expect("a norm");
        loaded.model.weights().floats(id).last().copied()
    };
    assert_eq!(norm(&again), Some(2.5));
    assert_eq!(norm(&loaded), Some(0.0));
}

fn set_time(path: &Path, time: SystemTime) {
    let file = File::options().write(true).open(path).expect("opens");
    file.set_times(FileTimes::new().set_modified(time)).expect("set");
}

/// A download or `mv` puts another file in its position: the mapping keeps the old one.
#[test]
#[cfg(unix)]
fn f11_a_replaced_renamed_or_deleted_file_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, loaded) = loaded(dir.path());
    let before = logits(&loaded).expect("runs");
    std::fs::rename(&path, dir.path().join("moved.gguf")).expect("renamed");
    assert_eq!(logits(&loaded).expect("runs"), before);
    std::fs::write(&path, b"another file").expect("written");
    assert_eq!(logits(&loaded).expect("runs"), before);
    std::fs::remove_file(dir.path().join("moved.gguf")).expect("removed");
    assert_eq!(logits(&loaded).expect("runs"), before);
}
