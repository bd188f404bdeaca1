//! Helpers to build and run plans.

use golden::Case;
use pellucid_engine::plan::FromSite;
use pellucid_engine::{
    Action, Array, Callback, Control, GenerateOptions, Generation, Operand, Plan, Positions, Run, SelectedRow, Tap,
};
use std::sync::Arc;

pub fn plan(taps: impl IntoIterator<Item = Tap>) -> Plan {
    Plan::of(taps)
}

pub fn capture(site: &str) -> Tap {
    Tap::new(site, Action::Capture(None))
}

/// Parses positions as written in a JSON plan, such as `-4:` or `last`.
pub fn at(positions: &str) -> Positions {
    Positions::parse(positions)
}

pub fn set(site: &str, operand: Operand) -> Tap {
    Tap::new(site, Action::Set(operand))
}

pub fn add(site: &str, value: f32) -> Tap {
    Tap::new(site, Action::Add { operand: Operand::Number(value), scale: 1.0 })
}

pub fn from(site: &str, row: usize) -> Operand {
    Operand::From(FromSite { site: Some(site.into()), rows: Some(vec![row]), positions: None })
}

pub fn call(f: impl Fn(&mut SelectedRow) + Send + Sync + 'static) -> Action {
    Action::Call(Callback(Arc::new(move |rows: &mut [SelectedRow]| rows.iter_mut().for_each(&f))))
}

/// A vector that does not have unit length.
pub fn direction(width: usize) -> Vec<f32> {
    (0..width).map(|i| ((i * 7 + 3) % 11) as f32 - 4.5).collect()
}

pub fn bits(array: &Array) -> Vec<u32> {
    array.values().iter().map(|x| x.to_bits()).collect()
}

/// Returns the captured value of a site in one row.
pub fn value(case: &Case, run: &Run, site: &str, row: usize) -> Array {
    run.get(case.site(site), row).unwrap_or_else(|| panic!("{}: no {site} of row {row}", case.name)).array.clone()
}

/// Runs the case's tokens under `taps`, and captures the logits last.
pub fn run(case: &Case, taps: impl IntoIterator<Item = Tap>) -> Run {
    case.run(std::slice::from_ref(&case.ids), &plan(taps.into_iter().chain([capture("logits")])))
}

/// The bits of the last capture of [`run`].
pub fn logits(run: &Run) -> Vec<u32> {
    bits(&run.captures.last().expect("logits").array)
}

pub fn generate(case: &Case, prompts: &[Vec<u32>], plan: &Plan, max_new: usize) -> Generation {
    let options = GenerateOptions { max_new, ..GenerateOptions::default() };
    case.loaded
        .model
        .generate(prompts, plan, &options, &mut |_, _| Control::Go)
        .unwrap_or_else(|e| panic!("{}: {e}", case.name))
}
