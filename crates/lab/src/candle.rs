//! candle as a peer: a small Rust program that is built on request, in a directory of the lab's own.
//!
//! It is no part of the workspace, so that nobody compiles candle who does not want to be compared with it.

use crate::executor::last_words;
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = include_str!("../peers/candle/Cargo.toml");
const PROGRAM: &str = include_str!("../peers/candle/main.rs");
const NAME: &str = "pellucid-lab-candle";

/// Builds the worker under a cache directory and returns it; quickly where it has been built before.
pub fn build(cache: &Path) -> Result<PathBuf> {
    let home = cache.join("lab").join("candle");
    let fail = |path: &Path, problem: String| Error::File { path: path.display().to_string(), problem };
    std::fs::create_dir_all(&home).map_err(|error| fail(&home, error.to_string()))?;
    for (name, text) in [("Cargo.toml", MANIFEST), ("main.rs", PROGRAM)] {
        let path = home.join(name);
        // An untouched file keeps its time, and cargo has nothing to do.
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        std::fs::write(&path, text).map_err(|error| fail(&path, error.to_string()))?;
    }
    let target = home.join("target");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--target-dir"]).arg(&target).current_dir(&home);
    // As candle's own examples are built: for the processor that is here.
    cargo.env("RUSTFLAGS", "-C target-cpu=native");
    let built = cargo.output().map_err(|error| fail(&home, format!("cargo cannot be started ({error})")))?;
    if !built.status.success() {
        return Err(fail(&home, format!("candle's worker cannot be built: {}", last_words(&built.stderr))));
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
        assert_eq!(version.map(|v| format!("={v}")).as_deref(), pinned, "the worker tells its own version as candle's");
    }
}
