//! Files of results; `pellucid_models::output` writes them so that a reader never sees an
//! incomplete one.

use crate::failure::Failure;
use pellucid_models::output;
pub use pellucid_models::results::{NamedResult, ResultView, Results};
use std::path::Path;

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    output::write(path, bytes).map_err(|error| output::error(path, &error).into())
}

/// Fails early if a file cannot be written, before minutes of work are done for it.
pub fn check(path: Option<&Path>) -> Result<(), Failure> {
    let checked = |path: &Path| output::check(path).map_err(|error| output::error(path, &error).into());
    path.map_or(Ok(()), checked)
}

/// Creates a directory if it does not exist, and checks that files can be written to it.
pub fn create_directory(path: &Path) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(
            format!("cannot write to the directory {}: {error}", path.display()),
            "give a directory that exists or can be created, and may be written",
        )
    };
    std::fs::create_dir_all(path).map_err(fail)?;
    output::check_directory(path).map_err(fail)
}

/// Writes results as one safetensors file, one array after the other.
pub fn write_results(path: &Path, results: &Results) -> Result<(), Failure> {
    let written = output::write_tensors(path, results.tensors(), results.metadata());
    written.map_err(|error| output::error(path, &error).into())
}
