//! Extracted directions are those of repeng and steering-vectors (tests/golden/steering, written by
//! tests/steering/run.py).

use pellucid_analysis::steer::{ExtractOptions, Method, extract};
use pellucid_models::checkpoint::Checkpoint;
use pellucid_models::steer::SteeringVectors;
use pellucid_models::{LoadOptions, LoadedModel};
use std::path::{Path, PathBuf};

/// Largest difference of an element, relative to the largest element, as for activations: the peers
/// compute activations and principal components in f32.
const TOLERANCE: f32 = 1e-4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/steering")
}

fn model() -> LoadedModel {
    LoadedModel::open(&golden::path("llama"), &LoadOptions::default(), &mut |_| {}).expect("the golden model")
}

/// The pairs of token rows in the metadata of the reference.
fn pairs(reference: &Checkpoint) -> Vec<[Vec<u32>; 2]> {
    let metadata = reference.metadata().expect("metadata");
    let (_, pairs) = metadata.iter().find(|(key, _)| key == "pairs").expect("pairs");
    serde_json::from_str(pairs).expect("a list of pairs")
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f32::max)
}

#[test]
fn directions_are_those_of_repeng_and_steering_vectors() {
    let reference = Checkpoint::open_file(&folder().join("llama.safetensors")).expect("the reference");
    let (loaded, pairs) = (model(), pairs(&reference));
    let directions = |method: Method, layer: usize| {
        let layers = Some([layer].into_iter().collect());
        let options = ExtractOptions { method, layers, ..ExtractOptions::default() };
        extract(&loaded, &pairs, &options, &mut |_| {}).expect("vectors").vectors.directions()[&layer].clone()
    };
    let mut compared = 0;
    for tensor in reference.tensors() {
        // PACKAGE/METHOD/LAYER
        let [_, method, layer] = tensor.name.split('/').collect::<Vec<_>>()[..] else { panic!("{}", tensor.name) };
        let (method, layer) = (Method::from_name(method).expect("a method"), layer.parse().expect("a layer"));
        let (floats, _) = reference.bytes(tensor).as_chunks::<4>();
        let expected: Vec<f32> = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let difference = largest_difference(&directions(method, layer), &expected);
        assert!(difference <= TOLERANCE, "{}: {difference:e}", tensor.name);
        // The control: another method gives another direction.
        let other = if method == Method::PcaDiff { Method::PcaCenter } else { Method::PcaDiff };
        assert!(largest_difference(&directions(other, layer), &expected) > 0.01, "{}", tensor.name);
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[test]
fn a_control_vector_written_by_repeng_is_read_with_its_bits() {
    let path = folder().join("repeng.gguf");
    let vectors = SteeringVectors::open(&path).expect("a control vector");
    assert_eq!(vectors.info.model_type.as_deref(), Some("llama"));
    assert_eq!(vectors.layers().as_slice(), [1]);
    vectors.check(model().model.program()).expect("it fits");
    assert_eq!(vectors.warning(&model()), None);
    let reference = Checkpoint::open_file(&folder().join("llama.safetensors")).expect("the reference");
    let tensor = reference.get("repeng/pca_diff/1").expect("repeng's direction");
    let bytes: Vec<u8> = vectors.directions()[&1].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(bytes, reference.bytes(tensor));
}
