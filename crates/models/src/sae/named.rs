//! Autoencoders by name: a path, or the one of the built-in model.

use super::{LoadedSae, read_sae};
use crate::builtin;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// Name of the autoencoder that comes with the built-in model.
pub const BUILTIN: &str = "builtin";

/// Reads the autoencoder at a path, or the built-in one if the name is [`BUILTIN`].
pub fn read_named_sae(name: &str) -> Result<LoadedSae> {
    if name == BUILTIN { read_builtin() } else { read_sae(Path::new(name)) }
}

/// Reads the autoencoder of the built-in model. The readers take files, so its embedded files are
/// written to a directory that exists while they are read.
fn read_builtin() -> Result<LoadedSae> {
    let directory = tempfile::tempdir().map_err(Error::io(&std::env::temp_dir()))?;
    for (name, bytes) in [("cfg.json", builtin::SAE_CONFIG), ("sae_weights.safetensors", builtin::SAE_WEIGHTS)] {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).map_err(Error::io(&path))?;
    }
    let mut loaded = read_sae(directory.path())?;
    loaded.info.path = PathBuf::from(BUILTIN);
    loaded.info.files.clear();
    Ok(loaded)
}
