//! The tokenizer of a path: its own or, for something that belongs to another model, that of its base model.
//!
//! An adapter and a folder of sparse autoencoders name the model that they were made for. Its tokenizer is taken where that model is
//! at hand: in the same folder, beside it, among the pulled models or in the Hugging Face cache. No other tokenizer is ever taken.

use crate::gguf;
use crate::source::{ModelSource, base_candidates};
use crate::tokenizer::{FORMS, Tokenizer};
use crate::{Error, Result, adapter, inspect, pull};
use std::path::{Path, PathBuf};

/// Loads the tokenizer of a directory or GGUF file; of an adapter's or sparse autoencoder's base model where it has none of its own.
/// [`Tokenizer::origin`] says which file it came from, [`Tokenizer::base`] whose it is.
///
/// # Errors
/// If there is none: the error says what was looked for, and where.
pub fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    if path.is_file() {
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
            return Ok(tokenizer.of_base(base));
        }
    }
    if let Ok(file) = pull::resolve(&base)
        && file.is_file()
        && let Some(tokenizer) = ModelSource::open(Some(&file))?.tokenizer()?
    {
        return Ok(tokenizer.of_base(base));
    }
    Err(missing(path, Some(&base), &candidates))
}

/// The tokenizer of a directory, GGUF file or (where absent) the built-in model, if it has one, without its weights; of an adapter, that
/// of its base model.
pub fn tokenizer_of(path: Option<&Path>) -> Result<Option<Tokenizer>> {
    ModelSource::open(path)?.tokenizer()
}

fn missing(path: &Path, base: Option<&str>, candidates: &[PathBuf]) -> Error {
    let forms = FORMS.join(", ");
    let problem = match base {
        None if path.is_file() => format!("the file holds no tokenizer ({} is missing)", gguf::TOKENIZER_MODEL),
        None => format!("there is no tokenizer here; looked for {forms}"),
        Some(base) => format!(
            "there is no tokenizer here, nor one of its base model `{base}`; looked for {forms} here and in {}",
            candidates.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    };
    let remedy = match base {
        None => {
            "put the tokenizer that came with the model beside its weights; another model's is never taken".to_owned()
        }
        Some(base) => format!("pull the base model (`pellucid pull {base}`), or put its tokenizer here"),
    };
    Error::invalid(path, problem, remedy)
}

/// The model that a directory was made for, if it says so.
fn base_model(dir: &Path) -> Result<Option<String>> {
    if dir.join(adapter::CONFIG).is_file() {
        return adapter::base_of(dir);
    }
    Ok(inspect::get_sae_base_model(dir))
}
