//! Measures the cost of steering and probes during batched decoding, as ratios of the time per
//! decode step:
//!
//! - 32 requests with 32 different steering specs against 32 requests with the same spec, and
//!   against none;
//! - one request with 1,000 probe directions at one site, as a `project` capture and as 1,000
//!   `mark` taps, against none.
//!
//! The variants of a comparison take turns, step block by step block, so that a slow phase of the
//! machine affects all of them.
//!
//!     cargo run --release -p pellucid-models --example steering_cost -- DIRECTORY_OR_GGUF

#![allow(clippy::print_stdout)] // prints its measurements

use pellucid_engine::plan::SteeringSpec;
use pellucid_engine::{Batch, Control, GenerateOptions, Model, Operand, Plan, Reduce, Tap, When};
use pellucid_models::{LoadOptions, LoadedModel};
use std::path::Path;
use std::time::Instant;

/// Requests that decode together.
const REQUESTS: usize = 32;
/// Directions of the probe.
const PROBES: usize = 1000;
/// Decode steps of a block, and blocks of each variant.
const STEPS: usize = 4;
const BLOCKS: usize = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let loaded = match std::env::args().nth(1) {
        Some(path) => LoadedModel::open(Path::new(&path), &LoadOptions::default(), &mut |_| {})?,
        None => LoadedModel::builtin(&LoadOptions::default())?,
    };
    let prompt = loaded.encode("Once upon a time, there was a little girl. She saw a big dog in the park.")?;
    let (model, width) = (&loaded.model, loaded.model.program().architecture().width);
    let depth = model.program().architecture().layers.len();

    let spec = |seed: usize| -> Result<Plan, pellucid_engine::Error> {
        let vector = direction(width, seed);
        let operations = serde_json::json!([
            {"type": "add", "vector": vector, "scale": 0.01},
            {"type": "cap", "vector": vector, "min": -50.0, "max": 50.0},
        ]);
        let json = serde_json::json!({"layers": {
            (depth / 3).to_string(): {"operations": operations},
            (depth / 2).to_string(): {"operations": operations},
        }});
        Ok(Plan::of(SteeringSpec::from_json(&json)?.taps()))
    };
    let different = (0..REQUESTS).map(spec).collect::<Result<Vec<Plan>, _>>()?;
    let same = vec![spec(0)?; REQUESTS];
    let none = vec![Plan::default(); REQUESTS];
    println!("{REQUESTS} requests, two edits at each of two layers:");
    compare(model, &prompt, &[("no steering", none), ("one spec", same), ("32 specs", different)])?;

    let site = format!("layers.{}.resid_post", depth / 2);
    let rows: Vec<Vec<f32>> = (0..PROBES).map(|seed| direction(width, seed)).collect();
    let marks = rows.iter().map(|row| Tap::mark("probe", When::above(&site, row.clone(), 1e9)));
    let marks = Plan::of(marks);
    let probe = Plan::of([Tap::capture_reduced(&site, Reduce::Project(Operand::Rows(rows)))]);
    println!("1 request, {PROBES} directions at {site}:");
    compare(model, &prompt, &[("no probe", vec![Plan::default()]), ("project", vec![probe]), ("marks", vec![marks])])?;
    Ok(())
}

/// A vector with fixed pseudo-random elements.
fn direction(width: usize, seed: usize) -> Vec<f32> {
    (0..width).map(|i| ((i * 7919 + seed * 104_729 + 13) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// Decodes all variants in turns; prints the median time of a step and the median ratio to the
/// variant before and to the first.
fn compare(model: &Model, prompt: &[u32], variants: &[(&str, Vec<Plan>)]) -> Result<(), Box<dyn std::error::Error>> {
    let options = GenerateOptions { max_new: 2 + STEPS * (BLOCKS + 1), ..GenerateOptions::default() };
    let mut batches = Vec::new();
    for (_, plans) in variants {
        let mut batch = Batch::new(model);
        for plan in plans {
            batch.add(&[prompt.to_vec()], plan, &options)?;
        }
        while batch.pass(usize::MAX, &mut |_, _, _| Control::Go)?.iter().any(|share| share.prompt_tokens > 0) {}
        batches.push(batch);
    }
    let mut times = vec![Vec::with_capacity(BLOCKS); variants.len()];
    for block in 0..=BLOCKS {
        for turn in 0..variants.len() {
            // Each block begins with another variant.
            let index = (turn + block) % variants.len();
            let started = Instant::now();
            for _ in 0..STEPS {
                batches[index].pass(usize::MAX, &mut |_, _, _| Control::Go)?;
            }
            // The first block warms up.
            if block > 0 {
                times[index].push(started.elapsed().as_secs_f64() / STEPS as f64);
            }
        }
    }
    for (index, (name, _)) in variants.iter().enumerate() {
        let ratio = |to: usize| median(times[index].iter().zip(&times[to]).map(|(a, b)| a / b).collect());
        let step = 1e3 * median(times[index].clone());
        let before = index.saturating_sub(1);
        println!(
            "  {name:<12} {step:8.3} ms per step  {:.3}x {:<12} {:.3}x {}",
            ratio(0),
            variants[0].0,
            ratio(before),
            variants[before].0
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
