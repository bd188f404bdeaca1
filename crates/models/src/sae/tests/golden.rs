//! Files that SAELens wrote (tests/sae/make_saelens.py), with its activations and reconstructions.

use super::*;
use serde_json::Value;
use std::path::PathBuf;

#[test]
fn files_of_saelens_encode_and_decode_as_saelens_does() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/sae/golden"));
    let mut seen = 0;
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(&root).expect("golden files").flatten().map(|e| e.path()).collect();
    dirs.sort();
    for dir in dirs.iter().filter(|dir| dir.is_dir()) {
        let loaded = read(dir);
        let text = std::fs::read_to_string(dir.join("reference.json")).expect("a reference");
        let reference: Value = serde_json::from_str(&text).expect("JSON");
        let rows = |key: &str| -> Vec<Vec<f64>> { serde_json::from_value(reference[key].clone()).expect("rows") };
        let (inputs, acts, outputs) = (rows("input"), rows("acts"), rows("output"));
        let mut active = 0;
        for ((x, acts), output) in inputs.iter().zip(&acts).zip(&outputs) {
            let (ours, recon) = encode_decode(&loaded.sae, x);
            active += acts.iter().filter(|act| **act != 0.0).count();
            let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close(&ours, acts), "{}: activations\n{ours:?}\n{acts:?}", dir.display());
            assert!(close(&recon, output), "{}: reconstruction\n{recon:?}\n{output:?}", dir.display());
        }
        assert!(active > 0, "{}: no feature is active", dir.display());
        seen += 1;
    }
    assert!(seen >= 12, "{seen} golden directories");
}
