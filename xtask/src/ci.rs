//! `cargo xtask ci`: all checks before a change lands: formatting, lints, all tests, and
//! instruction counts.

use crate::steps::Steps;
use crate::{cargo, root, test};
use std::process::Command;

/// Runs all checks.
pub fn run(steps: &mut Steps) {
    steps.command("formatting", cargo().args(["fmt", "--all", "--check"]));
    let deny = ["--", "--deny", "warnings"];
    steps.command("clippy", cargo().args(["clippy", "--workspace", "--all-targets", "--locked"]).args(deny));
    let mut rustdoc = cargo();
    rustdoc.args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"]).env("RUSTDOCFLAGS", "--deny warnings");
    steps.command("rustdoc", &mut rustdoc);
    if let Some(environment) = test::run(steps, true) {
        steps.command("ruff check", environment.program("ruff").args(["check", "python"]));
        steps.command("ruff format", environment.program("ruff").args(["format", "--check", "python"]));
    }
    // Counts a release build under valgrind, which the script installs if apt-get is available.
    steps.command("instructions", Command::new(root().join(".ci/instructions")).current_dir(root()));
}
