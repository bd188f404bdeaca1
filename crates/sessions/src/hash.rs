//! Content keys: SHA-256 of data and files, in hexadecimal.

use pellucid_models::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A running SHA-256. Each part is preceded by its length, so that no two lists of parts collide.
#[derive(Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds a part.
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Hasher {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// Adds the contents of a file.
    pub fn add_file(&mut self, path: &Path) -> Result<&mut Hasher> {
        let mut file = std::fs::File::open(path).map_err(Error::io(path))?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(Error::io(path))? {
                0 => return Ok(self),
                count => self.0.update(&buffer[..count]),
            }
        }
    }

    /// Returns the hash, 64 hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the SHA-256 of a file.
pub fn file_hash(path: &Path) -> Result<String> {
    let mut hasher = Hasher::default();
    hasher.add_file(path)?;
    Ok(hasher.finish())
}

/// Returns the fingerprint of a model: the SHA-256 of its configuration and weight files, and of
/// its adapters. `path` is absent for the built-in model.
pub fn model_fingerprint(path: Option<&Path>, adapters: &[impl AsRef<Path>]) -> Result<String> {
    let mut hasher = Hasher::default();
    match path {
        None => {
            hasher.add(pellucid_models::builtin::CONFIG).add(pellucid_models::builtin::WEIGHTS);
        }
        Some(path) => add_path(&mut hasher, path)?,
    }
    for adapter in adapters {
        add_path(&mut hasher, adapter.as_ref())?;
    }
    Ok(hasher.finish())
}

/// Adds a file, or the configuration and the weight files of a directory, by name.
fn add_path(hasher: &mut Hasher, path: &Path) -> Result<()> {
    if path.is_file() {
        hasher.add_file(path)?;
        return Ok(());
    }
    let entries = std::fs::read_dir(path).map_err(Error::io(path))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(|path| is_part_of_model(path)).collect();
    files.sort();
    for file in files {
        hasher.add(file.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.add_file(&file)?;
    }
    Ok(())
}

fn is_part_of_model(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.is_file()
        && (matches!(extension, "safetensors" | "gguf" | "bin" | "pt" | "pth")
            || matches!(name, "config.json" | "adapter_config.json"))
}

/// Returns the fingerprint of an autoencoder: the SHA-256 of its weight files, or of the embedded
/// one if there are none.
pub fn sae_fingerprint(files: &[PathBuf]) -> Result<String> {
    let mut hasher = Hasher::default();
    if files.is_empty() {
        hasher.add(pellucid_models::builtin::SAE_CONFIG).add(pellucid_models::builtin::SAE_WEIGHTS);
    }
    for file in files {
        hasher.add_file(file)?;
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let hash = |parts: &[&str]| {
            let mut hasher = Hasher::default();
            for part in parts {
                hasher.add(part);
            }
            hasher.finish()
        };
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
        assert_eq!(hash(&[]).len(), 64);
    }
}
