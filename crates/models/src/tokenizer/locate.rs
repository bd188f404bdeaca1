//! The tokenizer of a path: its own or, for what belongs to another model, that of its base model.
//!
//! An adapter and a folder of sparse autoencoders name the model that they were made for. Its tokenizer is taken where that model is
//! at hand: in the same folder, beside it, among the pulled models or in the Hugging Face cache. Nothing else is ever taken.

use super::convert::FORMS;
use super::{Sidecars, Tokenizer};
use crate::gguf::{self, GgufFile};
use crate::model::gguf_tokenizer;
use crate::{Error, Result, adapter, identify, pull};
use std::path::{Path, PathBuf};

/// Loads the tokenizer of a directory or GGUF file; of an adapter's or sparse autoencoder's base model where it has none of its own.
/// [`Tokenizer::origin`] says which file it came from, [`Tokenizer::base`] whose it is.
///
/// # Errors
/// If there is none: the error says what was looked for, and where.
pub fn load_tokenizer(path: &Path) -> Result<Tokenizer> {
    if path.is_file() {
        let tokenizer = gguf_tokenizer(&GgufFile::open(path)?, path)?.0;
        return tokenizer.ok_or_else(|| missing(path, None, &[]));
    }
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
    let places = places(path, &base);
    for place in places.iter().filter(|place| place.is_dir()) {
        if let Some(tokenizer) = Tokenizer::from_dir(place)? {
            return Ok(Tokenizer { base: Some(base), ..tokenizer });
        }
    }
    if let Ok(file) = pull::resolve(&base)
        && file.is_file()
        && let Some(tokenizer) = gguf_tokenizer(&GgufFile::open(&file)?, &file)?.0
    {
        return Ok(Tokenizer { base: Some(base), ..tokenizer });
    }
    Err(missing(path, Some(&base), &places))
}

fn missing(path: &Path, base: Option<&str>, places: &[PathBuf]) -> Error {
    let forms = FORMS.join(", ");
    let problem = match base {
        None if path.is_file() => format!("the file holds no tokenizer ({} is missing)", gguf::TOKENIZER_MODEL),
        None => format!("there is no tokenizer here; looked for {forms}"),
        Some(base) => format!(
            "there is no tokenizer here, nor one of its base model `{base}`; looked for {forms} here and in {}",
            places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ")
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

/// Where a base model may be, seen from what was made for it.
pub(crate) fn places(dir: &Path, base: &str) -> Vec<PathBuf> {
    let name = base.rsplit('/').next().unwrap_or(base);
    let beside = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_path_buf));
    let folders = [Some(dir.to_path_buf()), beside];
    let near = folders.iter().flatten().flat_map(|folder| [folder.join(base), folder.join(name)]);
    let pulled = pull::resolve(base).ok().filter(|found| found.is_dir());
    let mut places: Vec<PathBuf> = Vec::new();
    for place in near.chain(pulled).chain(cached(base)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// A model in the cache that Hugging Face's own libraries fill.
fn cached(id: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let hub = set("HF_HUB_CACHE").or_else(|| set("HF_HOME").map(|home| home.join("hub")));
    let hub = hub.or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))?;
    if id.contains("..") || id.starts_with('/') {
        return None;
    }
    let model = hub.join(format!("models--{}", id.replace('/', "--")));
    let revision = std::fs::read_to_string(model.join("refs/main")).ok()?;
    Some(model.join("snapshots").join(revision.trim()))
}

/// The model that a directory was made for, if it says so.
fn base_model(dir: &Path) -> Result<Option<String>> {
    if dir.join(adapter::CONFIG).is_file() {
        return adapter::base_of(dir);
    }
    Ok(identify::get_sae_base_model(dir))
}

/// The names of the files that a tokenizer may need beside its own.
pub(super) fn sidecar_files(dir: &Path) -> Result<[Option<Vec<u8>>; 4]> {
    let [a, b, c, d] = Sidecars::NAMES.map(|name| super::read_optional(&dir.join(name)));
    Ok([a?, b?, c?, d?])
}
