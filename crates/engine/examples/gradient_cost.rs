//! Measures the cost of gradients: forward and backward to every `resid_post` against the forward
//! pass alone, on a model of SmolLM2-135M's shape with synthetic weights.
//!
//!     cargo run --release -p pellucid-engine --example gradient_cost -- [tokens [rounds]]
#![allow(clippy::print_stdout)] // printing is what an example is for

use pellucid_engine::architecture::{
    Activation, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm, Rope, RopeStyle,
};
use pellucid_engine::{
    Action, Architecture, GradOptions, Model, Plan, Point, Positions, Program, RunOptions, Seed, Site, Tap, Weight,
    WeightKind, Weights,
};
use pellucid_kernels::{DType, Matrix, Pool};
use std::time::Instant;

fn architecture() -> Architecture {
    let norm = Norm::rms(1e-5);
    let attention = Attention { rope: Some(0), scale: 0.125, ..Attention::plain(9, 3, 64) };
    let layer = Layer {
        attention: Some(attention),
        mlp: Some(Mlp::Dense(Dense::gated(1536, Activation::Silu))),
        ..Layer::empty(norm)
    };
    let frequencies = (0..32).map(|i| 1.0 / 100_000f32.powf(i as f32 / 32.0)).collect();
    Architecture {
        family: "smollm".into(),
        vocab: 49152,
        width: 576,
        context: Some(8192),
        embedding: Embedding::default(),
        layers: vec![layer; 30],
        final_norm: Some(norm),
        head: Head { tied: true, ..Head::default() },
        ropes: vec![Rope::fixed(RopeStyle::Halves, frequencies, 1.0)],
        modules: Modules::default(),
    }
}

fn weights(program: &Program, dtype: DType) -> Weights {
    let pool = Pool::global();
    let value = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 8) & 0xffff) as f32 / 32768.0 - 1.0;
    let one = |spec: &pellucid_engine::WeightSpec| match spec.kind {
        WeightKind::Vector => Weight::Vector((0..spec.shape[0]).map(|i| 1.0 + 0.1 * value(i)).collect()),
        _ => {
            let (rows, cols) = (spec.shape[0], spec.shape[1]);
            let size = (cols as f32).sqrt().recip();
            let fill = |row: usize, out: &mut [f32]| {
                out.iter_mut().enumerate().for_each(|(col, x)| *x = size * value(row * cols + col));
            };
            Weight::Matrix(Matrix::pack(&pool, rows, cols, dtype, &fill))
        }
    };
    Weights::new(program.weights().iter().map(one).collect())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let tokens: usize = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    for dtype in [DType::F32, DType::Bf16] {
        let program = Program::new(architecture())?;
        let weights = weights(&program, dtype);
        let model = Model::new(program, weights);
        let text = vec![(0..tokens).map(|i| (i * 7919 % 49152) as u32).collect::<Vec<u32>>()];
        let forward = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
        let mut values = vec![0.0; 49152];
        (values[11], values[12]) = (1.0, -1.0);
        let seed = Seed { site: Site::model(Point::Logits), row: 0, positions: vec![tokens - 1], values };
        let to = model.find("layers.*.resid_post")?.sites;
        // Interleave the variants, so that noise affects all alike, and report the minimum.
        let mut least = [f64::INFINITY; 3];
        for _ in 0..rounds {
            for (way, least) in least.iter_mut().enumerate() {
                let started = Instant::now();
                match way {
                    0 => drop(model.run(&text, &forward, &RunOptions::default())?),
                    _ => {
                        let options = GradOptions { recompute: way == 2 };
                        drop(model.vjp(&text, &Plan::default(), std::slice::from_ref(&seed), &to, &options)?);
                    }
                }
                *least = least.min(started.elapsed().as_secs_f64());
            }
        }
        let [forward, both, again] = least;
        println!(
            "{dtype:?}, {tokens} tokens: forward {forward:.3} s, with backward {both:.3} s ({:.2} times), recomputed {again:.3} s ({:.2} times)",
            both / forward,
            again / forward
        );
    }
    Ok(())
}
