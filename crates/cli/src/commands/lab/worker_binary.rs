//! Finds or builds the binary `pellucid-lab-worker`, which counts allocations and serves downloads.

use super::{failure, say};
use crate::failure::Failure;
use pellucid_lab::lab_worker::{NAME, find_worker};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to get the worker.
pub const HINT: &str =
    "`cargo build --release` builds it next to pellucid, `cargo install --path crates/cli` installs both";

/// Returns the worker next to this executable. `cargo run` builds only the binary that it runs, so
/// a missing worker is built first.
pub fn worker_path() -> Result<PathBuf, Failure> {
    let own = crate::own_program()?;
    if find_worker(&own).is_err() {
        build(&own);
    }
    find_worker(&own).map_err(failure)
}

/// Builds the worker with this executable's profile if `cargo run` started it. A failed build shows
/// as a missing worker.
fn build(own: &Path) {
    let (cargo, package) = (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_DIR"));
    let (Some(cargo), Some(package), Some(profile)) = (cargo, package, own.parent()) else { return };
    let (Some(name), Some(target)) = (profile.file_name(), profile.parent()) else { return };
    say(&format!("building {NAME}"));
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--bin", NAME, "--manifest-path"]).arg(Path::new(&package).join("Cargo.toml"));
    command.arg("--target-dir").arg(target).arg("--profile").arg(if name == "debug" { "dev".as_ref() } else { name });
    if let Err(error) = command.status() {
        say(&format!("cargo: {error}"));
    }
}
