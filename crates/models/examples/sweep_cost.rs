//! Measures an activation patching sweep over every layer and position of a prompt: as branches of
//! one run, and as separate runs.
//!
//!     cargo run --release -p pellucid-models --example sweep_cost -- DIRECTORY_OR_GGUF

#![allow(clippy::print_stdout)] // prints its measurements

use pellucid_engine::{Action, Operand, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::DType;
use pellucid_models::{LoadOptions, LoadedModel, Storage};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = LoadOptions { storage: Storage::As(DType::F32), ..LoadOptions::default() };
    let loaded = match std::env::args().nth(1) {
        Some(path) => LoadedModel::open(Path::new(&path), &options, &mut |_| {})?,
        None => LoadedModel::builtin(&options)?,
    };
    let (clean, corrupt) = ("The capital of France is the old city of", "The capital of Russia is the old city of");
    let (clean, corrupt) = (loaded.encode(clean)?, loaded.encode(corrupt)?);
    let (model, depth) = (&loaded.model, loaded.model.program().architecture().layers.len());
    let clean_run =
        model.run(std::slice::from_ref(&clean), &Plan::capture(["layers.*.resid_post"]), &RunOptions::default())?;
    let patches: Vec<Plan> = (0..depth)
        .flat_map(|layer| (0..corrupt.len()).map(move |position| (layer, position)))
        .map(|(layer, position)| {
            let value = Operand::Vector(clean_run.captures[layer].array.row(position).to_vec());
            let patch = Tap::new(format!("layers.{layer}.resid_post"), Action::Set(value));
            let logits = Tap::new("logits", Action::Capture(None)).positions(Positions::Last);
            Plan::of([patch.positions(Positions::List(vec![position as i64])), logits])
        })
        .collect();
    let (mut branched, mut separate) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..3 {
        let started = Instant::now();
        let runs = model.base(&corrupt, &Plan::default())?.branches(&patches)?;
        branched = branched.min(started.elapsed().as_secs_f64());
        let started = Instant::now();
        for (plan, branch) in patches.iter().zip(&runs) {
            let whole = model.run(std::slice::from_ref(&corrupt), plan, &RunOptions::default())?;
            assert_eq!(whole.captures[0].array, branch.captures[0].array, "branches and runs must agree bit by bit");
        }
        separate = separate.min(started.elapsed().as_secs_f64());
    }
    println!(
        "{} patches of {} tokens: {:.0} ms as branches, {:.0} ms as separate runs, {:.1} times as fast",
        patches.len(),
        corrupt.len(),
        1e3 * branched,
        1e3 * separate,
        separate / branched
    );
    Ok(())
}
