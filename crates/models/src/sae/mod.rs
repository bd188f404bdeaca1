//! Reads sparse autoencoders and transcoders in every published format.
//!
//! [`read_sae`] takes a path, recognizes its format by the table in `formats`, and returns a
//! [`LoadedSae`]: the weights in the engine's runtime type and a description of where they belong.
//!
//! | module | task |
//! |---|---|
//! | `formats` | the table of formats, with one file per reader; detection by `inspect` uses it too |
//! | `search` | finds autoencoders in a directory tree |
//! | `file`, `npz` | tensors of checked shape, from safetensors, PyTorch pickles or NumPy archives |
//! | `view`, `parts` | matrices as strided views of the file; the autoencoder built from them |
//! | `settings`, `hooks` | settings files; sites of the hook points that they name |
//! | `fold` | exact rescalings of the weights |
//! | `info` | the description |
//! | `named` | autoencoders by path, or the built-in one |
//! | `layers` | all layers of a cross-layer transcoder |
//!
//! The published libraries disagree on orientation, biases, thresholds and normalization, and most
//! loaders guess. Here nothing is guessed: a tensor of an unexpected shape or name, a setting that
//! could change the results, or a NaN is an error that names the file and the tensor.

mod file;
mod fold;
pub(crate) mod formats;
mod hooks;
mod info;
mod layers;
mod layout;
mod named;
mod npz;
mod parts;
mod record;
pub(crate) mod search;
pub(crate) mod settings;
#[cfg(test)]
mod tests;
mod view;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pellucid_engine::Site;
use pellucid_engine::sae::Sae;
use sha2::{Digest, Sha256};

pub use fold::fold_input_scale;
pub use info::{SaeInfo, SaeRole};
pub use layers::read_layers;
pub use layout::SaeLayout;
pub use named::{BUILTIN, read_named_sae};
pub use record::{SaeCheck, SaeRecord, Tried};
pub use search::find_saes;

use crate::files::open_regular;
use crate::listing::Listing;
use crate::{Error, Result};
use formats::{FORMATS, Format};

/// An autoencoder with its description.
pub struct LoadedSae {
    /// The weights.
    pub sae: Arc<Sae>,
    /// The description.
    pub info: SaeInfo,
}

impl LoadedSae {
    /// The site that it reads; `None` if its files do not name one, or for a crosscoder that reads
    /// several.
    pub fn site_in(&self) -> Option<Site> {
        match self.info.sites_in[..] {
            [site] => Some(site),
            _ => None,
        }
    }

    /// Returns the SHA-256 of the weight files, in hexadecimal. Reads them completely.
    pub fn sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        for path in &self.info.files {
            let mut file = open_regular(path)?;
            loop {
                match file.read(&mut buffer).map_err(Error::io(path))? {
                    0 => break,
                    count => hash.update(&buffer[..count]),
                }
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Reads one autoencoder: a directory in one of the published formats, or a file of a directory
/// that holds several (`layer_3.safetensors`).
///
/// ```no_run
/// let loaded = pellucid_models::sae::read_sae("saes/blocks.8.hook_resid_pre".as_ref())?;
/// println!("{} features at {:?}", loaded.sae.n_features(), loaded.site_in());
/// # Ok::<(), pellucid_models::Error>(())
/// ```
pub fn read_sae(path: &Path) -> Result<LoadedSae> {
    if path.is_file() {
        return read_file(path);
    }
    if !path.exists() {
        return Err(Error::usage(
            format!("{}: no such file or directory", path.display()),
            "give the directory or the weights of an SAE, or `builtin`",
        ));
    }
    let listing = Listing::read(path).map_err(Error::io(path))?;
    if let Some(format) = formats::of_directory(&listing) {
        return read_member(format, &listing, path);
    }
    let found = find_saes(path)?;
    match &found.paths[..] {
        [] => Err(unknown_format(&listing)),
        [one] if !found.more => read_sae(one),
        several => Err(choose_one(path, several, found.more)),
    }
}

/// Reads the autoencoder of a recognized directory, if it holds exactly one.
fn read_member(format: &Format, listing: &Listing, path: &Path) -> Result<LoadedSae> {
    match &(format.members)(listing)[..] {
        [] => (format.read)(listing, ""),
        [one] => (format.read)(listing, one),
        several => {
            let several: Vec<PathBuf> = several.iter().map(|name| listing.dir.join(name)).collect();
            Err(choose_one(path, &several, false))
        }
    }
}

/// Reads the autoencoder that a file belongs to.
fn read_file(path: &Path) -> Result<LoadedSae> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let listing = Listing::read(parent).map_err(Error::io(parent))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(format) = formats::of_directory(&listing) else {
        // A file in `checkpoints/` of Llama Scope belongs to the directory above.
        let above = parent.parent().and_then(|above| Listing::read(above).ok());
        return match above.as_ref().and_then(|above| Some((formats::of_directory(above)?, above))) {
            Some((format, above)) if format.layout == SaeLayout::LlamaScope => read_member(format, above, &above.dir),
            _ => formats::read_single_checkpoint(&listing, &name),
        };
    };
    let members = (format.members)(&listing);
    if members.contains(&name) {
        return (format.read)(&listing, &name);
    }
    match &members[..] {
        [] => (format.read)(&listing, ""),
        [one] => (format.read)(&listing, one),
        several => {
            let several: Vec<PathBuf> = several.iter().map(|name| listing.dir.join(name)).collect();
            Err(choose_one(parent, &several, false))
        }
    }
}

/// The error for a path that holds several autoencoders.
fn choose_one(path: &Path, several: &[PathBuf], more: bool) -> Error {
    const SHOWN: usize = 12;
    let mut list: Vec<String> = several.iter().take(SHOWN).map(|path| format!("\n  {}", path.display())).collect();
    if several.len() > SHOWN || more {
        list.push(format!(
            "\n  … and {}{} more",
            if more { "at least " } else { "" },
            several.len().saturating_sub(SHOWN)
        ));
    }
    Error::usage(
        format!(
            "{} holds {}{} autoencoders:{}",
            path.display(),
            if more { "more than " } else { "" },
            several.len(),
            list.concat()
        ),
        "give the path of one of them",
    )
}

/// The error for a directory in no known format: the formats and why each does not match.
fn unknown_format(listing: &Listing) -> Error {
    let marks = formats::ConfigMarks::read(listing);
    let reasons: Vec<String> = FORMATS
        .iter()
        .map(|format| {
            let reason = (format.recognize)(listing, &|| marks).err().unwrap_or("");
            format!("\n  {}: {reason}", format.name)
        })
        .collect();
    Error::usage(
        format!("{} is not an autoencoder in a known format; tried:{}", listing.dir.display(), reasons.concat()),
        "give the directory that holds the weights and their settings file",
    )
}
