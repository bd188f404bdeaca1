//! Finds the tokenizer of a path: its own, or that of the base model of an adapter or autoencoder.
//!
//! Adapters and sparse autoencoders name their base model. It is looked for in the same folder, in
//! a sibling directory, among the pulled models and in the Hugging Face cache. No other tokenizer
//! is used.

use crate::gguf;
use crate::source::{ModelSource, PathKind, base_candidates};
use crate::tokenizer::{TOKENIZER_FILES, Tokenizer};
use crate::{Error, Result, adapter, inspect, pull};
use pellucid_engine::Remedy;
use std::path::{Path, PathBuf};

/// Loads the tokenizer of a directory or GGUF file. An adapter or sparse autoencoder without one
/// uses that of its base model. [`Tokenizer::origin`] is the file, [`Tokenizer::base`] the base
/// model.
///
/// # Errors
/// If there is none; the error lists the files and directories that were tried.
pub fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    // A directory may be a single GGUF file.
    if path.is_file() || matches!(PathKind::of(path), PathKind::Gguf(_)) {
        return ModelSource::open(Some(path))?.tokenizer()?.ok_or_else(|| missing(path, None, &[]));
    }
    // An adapter's own tokenizer comes before that of its base model.
    if let Some(tokenizer) = Tokenizer::from_dir(path)? {
        return Ok(tokenizer);
    }
    if !path.exists() {
        return Err(Error::usage(
            format!("there is nothing at {}", path.display()),
            "give a model's directory or GGUF file",
        ));
    }
    let Some(base) = base_model(path)? else { return Err(missing(path, None, &[])) };
    let candidates = base_candidates(path, &base);
    for dir in candidates.iter().filter(|dir| dir.is_dir()) {
        if let Some(tokenizer) = Tokenizer::from_dir(dir)? {
            return Ok(tokenizer.with_base(base));
        }
    }
    if let Ok(file) = pull::resolve(&base)
        && file.is_file()
        && let Some(tokenizer) = ModelSource::open(Some(&file))?.tokenizer()?
    {
        return Ok(tokenizer.with_base(base));
    }
    Err(missing(path, Some(&base), &candidates))
}

/// Loads the tokenizer of a directory, a GGUF file or (if `path` is absent) the built-in model,
/// without its weights. For an adapter, that of its base model. `None` if there is no tokenizer.
pub fn tokenizer_of(path: Option<&Path>) -> Result<Option<Tokenizer>> {
    ModelSource::open(path)?.tokenizer()
}

fn missing(path: &Path, base: Option<&str>, candidates: &[PathBuf]) -> Error {
    let forms = TOKENIZER_FILES.join(", ");
    let problem = match base {
        None if path.is_file() => format!("the file holds no tokenizer ({} is missing)", gguf::TOKENIZER_MODEL),
        None => format!("there is no tokenizer here; looked for {forms}"),
        Some(base) => format!(
            "there is no tokenizer here, nor one of its base model `{base}`; looked for {forms} here and in {}",
            candidates.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    };
    let remedy = match base {
        None => "put the model's tokenizer into the directory of its weights; another model's is never used".into(),
        Some(base) => Remedy::PullBase(base.into()),
    };
    Error::invalid(path, problem, remedy)
}

/// The base model that an adapter's or autoencoder's directory names.
fn base_model(dir: &Path) -> Result<Option<String>> {
    if dir.join(adapter::CONFIG).is_file() {
        return adapter::base_of(dir);
    }
    Ok(inspect::get_sae_base_model(dir))
}
