//! Generated pages: compared with what their generator makes now, or rewritten by it.
//!
//! Only generators that need nothing but this repository are here. CONTRIBUTING.md lists all of them.

use crate::steps::{Outcome, Steps};
use crate::{cargo, root, target};
use std::process::Command;

/// A page and the example program that makes it. It takes `--check` and then compares instead of writing.
struct Page {
    path: &'static str,
    example: &'static str,
}

const PAGES: &[Page] = &[Page { path: "docs/models.md", example: "models_page" }];

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
        Outcome::of(&problems)
    });
}

impl Page {
    fn problem(&self, fix: bool) -> Option<String> {
        let mut program = Command::new(target().join("debug/examples").join(self.example));
        let output = program.current_dir(root()).args((!fix).then_some("--check")).output();
        match output {
            Ok(output) if output.status.success() => None,
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Some(format!("{}: {said}\nhint: cargo xtask check --fix", self.path))
            }
            Err(error) => Some(format!("{}: {}: {error}", self.path, self.example)),
        }
    }
}
