//! Finds the base model of an adapter or autoencoder.

use super::PathKind;
use crate::adapter;
use crate::error::{Error, Result};
use crate::files::read_small;
use crate::pull;
use pellucid_engine::Remedy;
use std::path::{Path, PathBuf};

/// Finds the base model of an adapter: at the path that it names, in a sibling directory, among
/// pulled or cached models.
pub(super) fn base_of_adapter(dir: &Path) -> Result<PathBuf> {
    let base = adapter::base_of(dir)?;
    if let Some(base) = &base {
        // The path may be relative to the adapter or to the working directory. An adapter of an
        // adapter is rejected, because it could form a cycle.
        let candidates = base_candidates(dir, base).into_iter().chain(pull::resolve(base).ok());
        let is_model = |path: &PathBuf| matches!(PathKind::of(path), PathKind::Directory | PathKind::Gguf(_));
        if let Some(found) = candidates.into_iter().find(is_model) {
            return Ok(found);
        }
    }
    let owner = base.as_deref().map_or_else(|| "a model that it does not name".into(), |base| format!("`{base}`"));
    Err(Error::usage(
        format!("{} is an adapter for {owner}, not a model", dir.display()),
        Remedy::UseAdapter { base, adapter: dir.display().to_string() },
    ))
}

/// Directories that may hold the base model `base` of an adapter or autoencoder in `dir`.
pub(crate) fn base_candidates(dir: &Path, base: &str) -> Vec<PathBuf> {
    let name = base.rsplit('/').next().unwrap_or(base);
    let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_path_buf));
    let folders = [Some(dir.to_path_buf()), parent];
    let near = folders.iter().flatten().flat_map(|folder| [folder.join(base), folder.join(name)]);
    let pulled = pull::resolve(base).ok().filter(|found| found.is_dir());
    let mut candidates: Vec<PathBuf> = Vec::new();
    for candidate in near.chain(pulled).chain(hugging_face_cache(base)) {
        if !candidates.contains(&candidate) {
            candidates.push(candidate);
        }
    }
    candidates
}

/// Directory of a model in the cache of Hugging Face's libraries.
fn hugging_face_cache(id: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let hub = set("HF_HUB_CACHE").or_else(|| set("HF_HOME").map(|home| home.join("hub")));
    let hub = hub.or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))?;
    if id.contains("..") || id.starts_with('/') {
        return None;
    }
    let model = hub.join(format!("models--{}", id.replace('/', "--")));
    let revision = String::from_utf8(read_small(&model.join("refs/main"), 1024).ok()?).ok()?;
    Some(model.join("snapshots").join(revision.trim()))
}
