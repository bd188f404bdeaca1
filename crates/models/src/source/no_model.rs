//! Why a path cannot be opened as a model, and what to do instead.

use super::file_kind::FileKind;
use super::{ModelSource, gguf_files};
use crate::category::{self, Category, ConfigKeys, custom_code};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::{FETCH_LFS, LFS_POINTER, first_bytes};
use crate::gguf::GgufFile;
use crate::listing::Listing;
use pellucid_engine::Remedy;
use std::path::Path;

/// Explains why there is no model at a path.
pub(super) fn explain(path: &Path) -> Error {
    match std::fs::metadata(path) {
        Err(error) => Error::io(path)(error),
        Ok(metadata) if metadata.is_dir() => match Listing::read(path) {
            Ok(listing) => explain_directory(&listing, category::of_directory(&listing, None)),
            Err(error) => unreadable_directory(path, &error),
        },
        Ok(metadata) if metadata.is_file() => explain_file(path),
        Ok(_) => Error::invalid(path, "this is neither a file nor a directory", Remedy::GiveModelPath),
    }
}

fn unreadable_directory(path: &Path, error: &std::io::Error) -> Error {
    Error::invalid(path, format!("the directory cannot be read: {error}"), "check its permissions")
}

/// Explains why a file is not a model, by its first bytes.
fn explain_file(path: &Path) -> Error {
    let start = match first_bytes(path, FileKind::BYTES) {
        Ok(start) => start,
        Err(error) => {
            return Error::invalid(path, format!("the file cannot be read: {error}"), "check its permissions");
        }
    };
    if start.starts_with(LFS_POINTER) {
        return Error::invalid(path, "this is a Git LFS pointer, not the file itself", FETCH_LFS);
    }
    if is_safetensors(path) {
        let parent = path.parent().filter(|parent| parent.join("config.json").is_file());
        let remedy = match parent {
            Some(parent) => format!("give the directory that contains it: {}", parent.display()),
            None => "put it into a directory with its config.json, and give that directory".into(),
        };
        return Error::invalid(path, "a weight file without config.json does not identify its model", remedy);
    }
    if let Some(kind) = FileKind::of(path, &start) {
        return Error::unsupported(format!("{}: this file is {}", path.display(), kind.name), kind.remedy);
    }
    let named_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let problem = match named_gguf {
        true => "this file is not a model: it is named .gguf, but its contents are not GGUF",
        false => "this file is not a model",
    };
    Error::invalid(path, problem, Remedy::GiveModelPath)
}

/// Whether a file begins as a safetensors file does: with the length of its JSON header. Pipes and
/// devices are not opened: that may block.
pub(crate) fn is_safetensors(path: &Path) -> bool {
    path.is_file() && first_bytes(path, 9).is_ok_and(|start| start.get(8) == Some(&b'{'))
}

/// Explains why a directory without a readable `config.json`, or of this category, is not a model.
pub(crate) fn explain_directory(listing: &Listing, category: Category) -> Error {
    if let Some(error) = not_a_model(listing, category) {
        return error;
    }
    let files = gguf_files(listing);
    let (problem, remedy): (String, Remedy) = if !files.is_empty() {
        let problem = format!("there is no config.json here, but several GGUF files: {}", files.join(", "));
        (problem, "give one of them".into())
    } else if listing.has_dir("config.json") {
        ("config.json is a directory, where a file is expected".into(), "download the model again".into())
    } else if listing.is_empty() {
        ("there is no config.json here: the directory is empty".into(), Remedy::GiveModelPath)
    } else {
        let inner = listing.dirs().find(|dir| listing.dir.join(dir).join("config.json").is_file());
        let remedy = inner.map(|dir| format!("there is one in {dir}: give that directory").into());
        ("there is no config.json here".into(), remedy.unwrap_or(Remedy::GiveModelPath))
    };
    Error::invalid(&listing.dir, problem, remedy)
}

/// The error for a category that is never a model by itself.
fn not_a_model(listing: &Listing, category: Category) -> Option<Error> {
    let (problem, remedy) = match category {
        Category::Sae => (
            "sparse autoencoders are not a model by themselves",
            "load the model that they were trained on, and use them with it",
        ),
        Category::Diffusers => {
            ("image pipelines do not run here", "use the `diffusers` library; Pellucid runs language models")
        }
        _ => return None,
    };
    Some(Error::unsupported(format!("{}: {problem}", listing.dir.display()), remedy))
}

/// A model of a type that is not native.
pub(crate) struct UnknownType {
    /// Its category.
    pub category: Category,
    /// A Python file that comes with it.
    pub own_code: Option<String>,
}

impl UnknownType {
    /// Reads the category and the code of a model.
    ///
    /// # Errors
    /// If its category is never a model by itself.
    pub(crate) fn read(source: &ModelSource, config: &Config) -> Result<UnknownType> {
        let ModelSource::Directory(dir) = source else {
            return Ok(UnknownType { category: Category::Transformers, own_code: None });
        };
        let listing = Listing::read(dir).map_err(|error| unreadable_directory(dir, &error))?;
        let keys = ConfigKeys::from_value(config.value(), config.origin()).ok();
        UnknownType::of_directory(&listing, category::of_directory(&listing, keys.as_ref()), config)
    }

    /// Like [`read`](Self::read), for a directory of a known category.
    pub(crate) fn of_directory(listing: &Listing, category: Category, config: &Config) -> Result<UnknownType> {
        match not_a_model(listing, category) {
            Some(error) => Err(error),
            None => {
                let own_code = custom_code(listing, Some(config.value())).into_iter().next();
                Ok(UnknownType { category, own_code })
            }
        }
    }

    /// Whether it may be a language model, which a native family may fit.
    pub(crate) fn is_text(&self) -> bool {
        matches!(self.category, Category::Transformers | Category::Unknown)
    }
}

/// Refuses a GGUF file that is not a language model: an adapter, control vectors, an encoder.
pub(super) fn check_gguf(file: &GgufFile) -> Result<()> {
    let category = category::of_gguf(file.text("general.type")?, file.architecture()?);
    let (problem, remedy) = match category {
        Category::Transformers => return Ok(()),
        Category::Adapter => {
            ("an adapter is not a model by itself".into(), "merge it into its base model with `llama-export-lora`")
        }
        Category::Sae => {
            ("control vectors are not a model by themselves".into(), "load the model that they were made for")
        }
        other => (
            format!("a GGUF file of the category {} does not run here", other.name()),
            "give the GGUF file of a language model",
        ),
    };
    Err(Error::unsupported(format!("{}: {problem}", file.path().display()), remedy))
}
