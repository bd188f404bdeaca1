//! Commands for contributors, run as `cargo xtask …` (alias in `.cargo/config.toml`).
//!
//! `test` needs Rust, Python 3.11 with pip and a C compiler; it sets up everything else under
//! `target/`. `check` covers what neither the compiler nor a test does: the structure of the
//! sources, and generated pages. `ci` is what `.ci/run` runs.

mod check;
mod ci;
mod python;
mod steps;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use steps::Steps;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--offline]   run all tests: Rust, Python, structure and generated pages
                     --offline skips what needs the network: real weights, and the Python package
                     if its build tools are not installed yet
  check [--fix]      check module cycles, file lengths, files that no module declares, generated pages
                     --fix rewrites the generated pages
  ci                 formatting, lints, `test`, and instruction counts (same as .ci/run)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut steps = Steps::default();
    match arguments[..] {
        ["test"] => drop(test::run(&mut steps, true)),
        ["test", "--offline"] => drop(test::run(&mut steps, false)),
        ["check"] => check::run(&mut steps, false),
        ["check", "--fix"] => check::run(&mut steps, true),
        ["ci"] => ci::run(&mut steps),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    steps.finish()
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// Returns a cargo command that runs at the root of the repository.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Returns cargo's target directory: this program is in `target/debug`.
fn target() -> PathBuf {
    let program = std::env::current_exe().ok();
    program.and_then(|file| file.ancestors().nth(2).map(Path::to_owned)).unwrap_or_else(|| root().join("target"))
}
