//! Attached sparse autoencoders: features as sites.

mod attach;
mod check;
mod check_layers;
mod cross_layer;
mod gradients;
mod refused;
mod rows;
mod sparse;
mod splice;

use golden::Case;
use pellucid_engine::sae::{InputNormalization, Sae, SaeKind};
use pellucid_engine::{Model, Plan, Run, RunOptions, Site};
use pellucid_kernels::{DType, Matrix, Pool};
use std::sync::Arc;

/// A fixed sequence of numbers from −1 to 1.
fn number(seed: usize) -> f32 {
    let mut x = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 32;
    (x % 20_001) as f32 / 10_000.0 - 1.0
}

fn numbers(seed: usize, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|i| number(seed * 1_000_003 + i) * size).collect()
}

fn matrix(seed: usize, rows: usize, cols: usize, size: f32) -> Matrix {
    let values = numbers(seed, rows * cols, size);
    Matrix::pack(&Pool::global(), rows, cols, DType::F32, &|row, out| {
        out.copy_from_slice(&values[row * cols..][..cols]);
    })
}

/// The number of features of the test autoencoders.
const FEATURES: usize = 40;

/// An autoencoder or transcoder with fixed weights, of which some features fire at every token.
fn sae(kind: SaeKind, d_in: usize, d_out: usize) -> Sae {
    let size = 1.0 / (d_in as f32).sqrt();
    Sae {
        kind,
        normalization: InputNormalization::None,
        undo_normalization: d_in == d_out,
        subtract_decoder_bias: d_in == d_out,
        encoder: matrix(1, FEATURES, d_in, size),
        encoder_bias: numbers(2, FEATURES, 0.1),
        decoders: vec![matrix(3, FEATURES, d_out, size)],
        decoder_biases: vec![numbers(4, d_out, 0.1)],
        skip: None,
    }
}

fn kinds() -> Vec<SaeKind> {
    vec![
        SaeKind::Relu,
        SaeKind::JumpRelu { threshold: (0..FEATURES).map(|i| 0.02 + number(i).abs() * 0.1).collect() },
        SaeKind::TopK { k: 5, by_decoder_norm: None },
        SaeKind::Gated {
            gate_bias: numbers(5, FEATURES, 0.1),
            magnitude_bias: numbers(6, FEATURES, 0.1),
            log_scale: numbers(7, FEATURES, 0.2),
        },
    ]
}

/// The width of a site.
fn width(case: &Case, site: Site) -> usize {
    width_in(&case.loaded.model, site)
}

fn width_in(model: &Model, site: Site) -> usize {
    let program = model.program();
    program.edge(program.edge_of(site).expect("the site exists")).width
}

/// The model of a case with an autoencoder at a site.
fn attached(case: &Case, kind: SaeKind, site: &str) -> Model {
    let site = case.site(site);
    let d = width(case, site);
    case.loaded.model.attach(Arc::new(sae(kind, d, d)), site, site).unwrap_or_else(|e| panic!("{}: {e}", case.name))
}

fn run(model: &Model, rows: &[Vec<u32>], plan: &Plan) -> Run {
    model.run(rows, plan, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}
