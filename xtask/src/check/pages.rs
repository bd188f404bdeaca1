//! Generated pages: compared with the output of their generator, or rewritten by it.
//!
//! Only generators that need nothing but this repository are here. CONTRIBUTING.md lists all.

use crate::steps::{StepOutcome, Steps};
use crate::{cargo, root, target};
use std::process::Command;

/// A page and the example program that writes it; with `--check` the program compares instead.
struct Page {
    path: &'static str,
    example: &'static str,
}

const PAGES: &[Page] = &[Page { path: "docs/model-types.md", example: "models_page" }];

/// Compares the pages, or rewrites them.
pub fn run(steps: &mut Steps, fix: bool) {
    // `--workspace`: the features of `cargo test --workspace`, so that nothing is built twice.
    let mut build = cargo();
    build.args(["build", "--workspace", "--locked", "--quiet"]);
    build.args(PAGES.iter().flat_map(|page| ["--example", page.example]));
    if !steps.command("build of the page generators", &mut build) {
        return;
    }
    steps.step("generated pages", |_| {
        let problems: Vec<String> = PAGES.iter().filter_map(|page| page.problem(fix)).collect();
        StepOutcome::of(&problems)
    });
}

impl Page {
    fn problem(&self, fix: bool) -> Option<String> {
        let mut program = Command::new(target().join("debug/examples").join(self.example));
        let output = program.current_dir(root()).args((!fix).then_some("--check")).output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Some(format!("{}: {message}\nhint: cargo xtask check --fix", self.path))
            }
            Err(error) => Some(format!("{}: {}: {error}", self.path, self.example)),
        }
    }
}
