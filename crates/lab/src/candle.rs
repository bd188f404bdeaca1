//! candle's worker: a small Rust program that the lab builds on request in its cache directory.
//!
//! It is not part of the workspace, so that a normal build does not compile candle.

use crate::executor::last_lines;
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = include_str!("../peers/candle/Cargo.toml");
const PROGRAM: &str = include_str!("../peers/candle/main.rs");
const NAME: &str = "pellucid-lab-candle";

/// Builds the worker under `cache` and returns its path; fast if it is already built.
pub fn build(cache: &Path) -> Result<PathBuf> {
    let home = cache.join("lab").join("candle");
    let fail = |path: &Path, problem: String| Error::File { path: path.display().to_string(), problem };
    std::fs::create_dir_all(&home).map_err(|error| fail(&home, error.to_string()))?;
    for (name, text) in [("Cargo.toml", MANIFEST), ("main.rs", PROGRAM)] {
        let path = home.join(name);
        // Unchanged files keep their modification time, so cargo does not rebuild.
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        std::fs::write(&path, text).map_err(|error| fail(&path, error.to_string()))?;
    }
    let target = home.join("target");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--target-dir"]).arg(&target).current_dir(&home);
    // candle recommends building for the local processor.
    cargo.env("RUSTFLAGS", "-C target-cpu=native");
    let built = cargo.output().map_err(|error| fail(&home, format!("cargo cannot be started ({error})")))?;
    if !built.status.success() {
        return Err(fail(&home, format!("candle's worker cannot be built: {}", last_lines(&built.stderr))));
    }
    Ok(target.join("release").join(NAME).with_extension(std::env::consts::EXE_EXTENSION))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_a_package_of_its_own() {
        let manifest: toml::Table = MANIFEST.parse().expect("TOML");
        assert!(manifest.contains_key("workspace"), "or cargo would look for one around the cache");
        assert_eq!(manifest["package"]["name"].as_str(), Some(NAME));
        let (version, pinned) =
            (manifest["package"]["version"].as_str(), manifest["dependencies"]["candle-core"].as_str());
        assert_eq!(
            version.map(|v| format!("={v}")).as_deref(),
            pinned,
            "the worker reports its own version as candle's"
        );
    }
}
