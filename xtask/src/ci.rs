//! Everything that must hold before a change lands: formatting, lints, all tests, and the count of instructions.

use crate::steps::Steps;
use crate::{cargo, root, test};
use std::process::Command;

/// Runs it all.
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
    // Of a release build; needs valgrind, which it installs where apt-get can.
    steps.command("instructions", Command::new(root().join(".ci/instructions")).current_dir(root()));
}
