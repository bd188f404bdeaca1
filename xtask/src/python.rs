//! The virtual environment `target/venv`, with the Python package installed as pip installs it for
//! users.

use crate::steps::{StepOutcome, Steps};
use crate::{root, target};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Oldest Python version for the tests.
const MIN_VERSION: (u32, u32) = (3, 11);

/// A virtual environment with the package, pytest and ruff.
pub struct Environment(PathBuf);

impl Environment {
    /// Returns a command for a program of the environment, run at the root of the repository.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.current_dir(root());
        command
    }
}

/// Creates the environment and installs the package; without `online` only with installed or cached
/// tools.
pub fn environment(steps: &mut Steps, online: bool) -> Option<Environment> {
    let environment = Environment(target().join("venv"));
    steps.step("Python package", |_| make(&environment, online)).then_some(environment)
}

fn make(environment: &Environment, online: bool) -> StepOutcome {
    if let Err(why) = virtual_environment(environment) {
        return StepOutcome::Failed(why);
    }
    let mut pip = environment.program("pip");
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--retries", "2", "./python[test]"]);
    // The profile of the tests, so that their compiled crates are reused.
    pip.env("MATURIN_PEP517_ARGS", "--profile dev");
    if !online {
        pip.args(["--no-index", "--no-build-isolation"]);
    }
    match pip.output() {
        Ok(output) if output.status.success() => StepOutcome::Passed,
        Ok(output) => failed_install(&output, online),
        Err(error) => StepOutcome::Failed(format!("pip: {error}")),
    }
}

/// Distinguishes a missing network from a package that does not build.
fn failed_install(output: &Output, online: bool) -> StepOutcome {
    let output_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let missing = [
        "No matching distribution",
        "Could not find a version",
        "NewConnectionError",
        "No module named",
        "Cannot import 'maturin'",
    ];
    if missing.iter().any(|sign| output_text.contains(sign)) {
        let last = output_text
            .lines()
            .rev()
            .find(|line| line.contains("ERROR") || line.contains("Error"))
            .unwrap_or(&output_text);
        let why = format!(
            "pip cannot download the build and test tools (maturin, numpy, pytest, ruff); check the network\n{last}"
        );
        return StepOutcome::Skipped { why, fatal: online };
    }
    StepOutcome::Failed(format!("pip install ./python[test]: {}\n{output_text}", output.status))
}

fn virtual_environment(environment: &Environment) -> Result<(), String> {
    if environment.program("pip").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let python = interpreter()?;
    let output = Command::new(&python).args(["-m", "venv", "--clear"]).arg(&environment.0).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let output_text = [output.stdout, output.stderr].concat();
            let output_text = String::from_utf8_lossy(&output_text).trim().to_owned();
            Err(format!(
                "{python} -m venv: {}\n{output_text}\nhint: on Debian and Ubuntu, install the package python3-venv",
                output.status
            ))
        }
        Err(error) => Err(format!("{python}: {error}")),
    }
}

/// Returns the interpreter for the environment: `PELLUCID_PYTHON`, or the one on the path.
fn interpreter() -> Result<String, String> {
    let candidates = match std::env::var("PELLUCID_PYTHON") {
        Ok(python) if !python.is_empty() => vec![python],
        _ => vec!["python3".to_owned(), "python".to_owned()],
    };
    let mut found = Vec::new();
    for python in candidates {
        let Ok(output) = Command::new(&python).arg("--version").output() else { continue };
        let output_text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if version(&output_text).is_some_and(|version| version >= MIN_VERSION) {
            return Ok(python);
        }
        found.push(format!("{python} is {output_text}"));
    }
    let found = if found.is_empty() { "there is none on the path".into() } else { found.join(", ") };
    let (major, minor) = MIN_VERSION;
    Err(format!(
        "the Python package needs Python {major}.{minor} or later: {found}\nhint: set PELLUCID_PYTHON to another interpreter"
    ))
}

/// Parses major and minor version from `Python 3.11.7`.
fn version(output_text: &str) -> Option<(u32, u32)> {
    let mut numbers = output_text.strip_prefix("Python ")?.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_as_numbers() {
        assert_eq!(version("Python 3.11.7"), Some((3, 11)));
        assert_eq!(version("Python 3.14.0rc1"), Some((3, 14)));
        assert_eq!(version("python: command not found"), None);
        assert!(version("Python 3.9.18").is_some_and(|version| version < MIN_VERSION));
    }
}
