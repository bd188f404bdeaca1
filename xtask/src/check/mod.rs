//! `cargo xtask check`: structure that neither the compiler nor a test checks.

mod allowed;
mod cycles;
mod files;
mod imports;
mod pages;
mod source;

use crate::root;
use crate::steps::{Outcome, Steps};

/// Runs the checks; with `fix` the generated pages are rewritten instead of compared.
pub fn run(steps: &mut Steps, fix: bool) {
    let root = root();
    let or_error = |found: Result<Vec<String>, String>| found.unwrap_or_else(|error| vec![error]);
    steps.step("module cycles", |_| Outcome::of(&or_error(cycles::check(&root))));
    steps.step("source files", |_| Outcome::of(&or_error(files::check(&root))));
    pages::run(steps, fix);
}
