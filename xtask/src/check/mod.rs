//! `cargo xtask check`: checks that neither the compiler nor a test does.

mod allowed;
mod cycles;
mod files;
mod imports;
mod pages;
mod source;
mod words;

use crate::root;
use crate::steps::{StepOutcome, Steps};

/// Runs the checks; with `fix`, generated pages are rewritten instead of compared.
pub fn run(steps: &mut Steps, fix: bool) {
    let root = root();
    let or_error = |found: Result<Vec<String>, String>| found.unwrap_or_else(|error| vec![error]);
    steps.step("module cycles", |_| StepOutcome::of(&or_error(cycles::check(&root))));
    steps.step("source files", |_| StepOutcome::of(&or_error(files::check(&root))));
    steps.step("language", |_| StepOutcome::of(&or_error(files::check_language(&root))));
    pages::run(steps, fix);
}
