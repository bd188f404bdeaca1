//! The wheel of the Python package, as it is released; the virtual environment `target/venv`, in
//! which the wheel is tested; and an empty environment, in which it must work alone.

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

/// Builds the wheel and installs it in the environment; without `online` only with installed tools.
pub fn environment(steps: &mut Steps, online: bool) -> Option<Environment> {
    let environment = Environment(target().join("venv"));
    let tools = steps.step("Python tools", |_| install_tools(&environment, online));
    let wheel = tools && steps.step("wheel", |_| outcome(build_wheel(&environment)));
    let installed = wheel && steps.step("Python package", |_| outcome(install_wheel(&environment, online)));
    if wheel && online {
        steps.step("wheel in an empty environment", |_| outcome(try_wheel()));
    }
    installed.then_some(environment)
}

fn outcome(result: Result<(), String>) -> StepOutcome {
    result.map_or_else(StepOutcome::Failed, |()| StepOutcome::Passed)
}

/// Runs a command; the error has its output.
fn succeed(command: &mut Command) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Err(format!("{program}: {}\n{}", output.status, String::from_utf8_lossy(&text).trim()))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// Directory of the wheel.
fn wheels() -> PathBuf {
    target().join("wheels")
}

/// The tools that build and test the package, with the versions of `pyproject.toml`.
fn install_tools(environment: &Environment, online: bool) -> StepOutcome {
    if let Err(why) = virtual_environment(environment) {
        return StepOutcome::Failed(why);
    }
    let mut pip = environment.program("pip");
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--retries", "2"]);
    let requirements = match requirements() {
        Ok(requirements) => requirements,
        Err(why) => return StepOutcome::Failed(why),
    };
    pip.args(requirements);
    if !online {
        pip.arg("--no-index");
    }
    match pip.output() {
        Ok(output) if output.status.success() => StepOutcome::Passed,
        Ok(output) => failed_install(&output, online),
        Err(error) => StepOutcome::Failed(format!("pip: {error}")),
    }
}

/// Reads the lists of packages in `pyproject.toml`: build tools, dependencies, tools of the tests.
fn requirements() -> Result<Vec<String>, String> {
    let file = root().join("python/pyproject.toml");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let lists = ["requires = [", "dependencies = [", "test = ["];
    let list = |start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start)?.strip_suffix(']'));
        line.ok_or_else(|| format!("{}: no line `{start}…]`", file.display()))
    };
    let names = |line: &str| line.split("\"").skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    Ok(lists.into_iter().map(list).collect::<Result<Vec<_>, _>>()?.into_iter().flat_map(names).collect())
}

/// Builds the wheel that a release has; `.ci/instructions` uses the same compiled crates.
fn build_wheel(environment: &Environment) -> Result<(), String> {
    // A wheel of an earlier version would be installed as well.
    let _ = std::fs::remove_dir_all(wheels());
    let mut maturin = environment.program("maturin");
    maturin.args(["build", "--release", "--manifest-path", "python/Cargo.toml", "--out"]).arg(wheels());
    succeed(&mut maturin).map(drop)
}

/// Returns the only wheel.
fn find_wheel() -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(wheels()).map_err(|error| format!("{}: {error}", wheels().display()))?;
    let found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    match &found[..] {
        [wheel] => Ok(wheel.clone()),
        _ => Err(format!("{} wheels in {} instead of one", found.len(), wheels().display())),
    }
}

fn install_wheel(environment: &Environment, online: bool) -> Result<(), String> {
    let mut pip = environment.program("pip");
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    pip.args((!online).then_some("--no-index")).arg(find_wheel()?);
    succeed(&mut pip).map(drop)
}

/// Installs the wheel in an empty environment, as a user does, and uses both parts of it.
fn try_wheel() -> Result<(), String> {
    let empty = Environment(target().join("empty-venv"));
    let _ = std::fs::remove_dir_all(&empty.0);
    virtual_environment(&empty)?;
    let mut pip = empty.program("pip");
    succeed(pip.args(["install", "--quiet", "--disable-pip-version-check", "--retries", "2"]).arg(find_wheel()?))?;
    // Neither the repository's package nor a compiler is in reach.
    let alone = |mut command: Command| {
        command.current_dir(target()).env("PATH", empty.0.join("bin"));
        succeed(&mut command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut command = empty.program("pellucid");
    command.args(["run", "Once upon a"]);
    let text = alone(command)?;
    if !text.contains("\" time\"") {
        return Err(format!("the command of the wheel printed:\n{text}"));
    }
    let mut python = empty.program("python");
    python.args(["-c", "import pellucid; print(pellucid.load().generate('Once upon a', max_new=1).text)"]);
    let text = alone(python)?;
    if text.trim().is_empty() { Err("the package of the wheel generated no text".into()) } else { Ok(()) }
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
    StepOutcome::Failed(format!("pip install: {}\n{output_text}", output.status))
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

    #[test]
    fn the_lists_of_pyproject_are_found() {
        let found = requirements().expect("three lists");
        for name in ["maturin", "numpy", "pytest", "ruff"] {
            assert!(found.iter().any(|line| line.starts_with(name)), "{name} in {found:?}");
        }
    }
}
