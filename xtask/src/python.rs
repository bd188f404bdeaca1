//! The virtual environment `target/venv` with the Python package built into it as pip builds it for a user.

use crate::steps::{Outcome, Steps};
use crate::{root, target};
use std::path::PathBuf;
use std::process::{Command, Output};

/// The oldest Python that the tests are run with.
const OLDEST: (u32, u32) = (3, 11);

/// A virtual environment with the package, pytest and ruff.
pub struct Environment(PathBuf);

impl Environment {
    /// A program of the environment, to be run at the root of the repository.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.0.join("bin").join(name));
        command.current_dir(root());
        command
    }
}

/// Makes the environment and builds the package; without `online` with what is installed or cached already.
pub fn environment(steps: &mut Steps, online: bool) -> Option<Environment> {
    let environment = Environment(target().join("venv"));
    steps.step("Python package", |_| make(&environment, online)).then_some(environment)
}

fn make(environment: &Environment, online: bool) -> Outcome {
    if let Err(why) = virtual_environment(environment) {
        return Outcome::Failed(why);
    }
    let mut pip = environment.program("pip");
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--retries", "2", "./python[test]"]);
    // The profile of the tests, so that the crates that they have compiled serve here too.
    pip.env("MATURIN_PEP517_ARGS", "--profile dev");
    if !online {
        pip.args(["--no-index", "--no-build-isolation"]);
    }
    match pip.output() {
        Ok(output) if output.status.success() => Outcome::Passed,
        Ok(output) => failed_install(&output, online),
        Err(error) => Outcome::Failed(format!("pip: {error}")),
    }
}

/// Pip failed: because the network is missing, or because the package does not build.
fn failed_install(output: &Output, online: bool) -> Outcome {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let missing = [
        "No matching distribution",
        "Could not find a version",
        "NewConnectionError",
        "No module named",
        "Cannot import 'maturin'",
    ];
    if missing.iter().any(|sign| said.contains(sign)) {
        let last = said.lines().rev().find(|line| line.contains("ERROR") || line.contains("Error")).unwrap_or(&said);
        let why = format!(
            "pip cannot fetch what the package needs (maturin, numpy, pytest, ruff): is there a network?\n{last}"
        );
        return Outcome::Skipped { why, fatal: online };
    }
    Outcome::Failed(format!("pip install ./python[test]: {}\n{said}", output.status))
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
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            Err(format!(
                "{python} -m venv: {}\n{said}\nhint: Debian and Ubuntu have it in the package python3-venv",
                output.status
            ))
        }
        Err(error) => Err(format!("{python}: {error}")),
    }
}

/// The Python to make the environment with: `PELLUCID_PYTHON`, or what is on the path.
fn interpreter() -> Result<String, String> {
    let candidates = match std::env::var("PELLUCID_PYTHON") {
        Ok(python) if !python.is_empty() => vec![python],
        _ => vec!["python3".to_owned(), "python".to_owned()],
    };
    let mut found = Vec::new();
    for python in candidates {
        let Ok(output) = Command::new(&python).arg("--version").output() else { continue };
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if version(&said).is_some_and(|version| version >= OLDEST) {
            return Ok(python);
        }
        found.push(format!("{python} is {said}"));
    }
    let found = if found.is_empty() { "there is none on the path".into() } else { found.join(", ") };
    let (major, minor) = OLDEST;
    Err(format!(
        "the Python package needs Python {major}.{minor} or later: {found}\nhint: PELLUCID_PYTHON names another"
    ))
}

/// The first two numbers of `Python 3.11.7`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.strip_prefix("Python ")?.split('.').map(|part| part.parse().ok());
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
        assert!(version("Python 3.9.18").is_some_and(|version| version < OLDEST));
    }
}
