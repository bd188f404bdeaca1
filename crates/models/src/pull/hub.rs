//! Downloads a model from a hub by its id.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::{Progress, Sources, io_error, is_plain};
use crate::{Error, Result};

/// Configuration files of a model.
const CONFIG_FILES: [&str; 4] =
    ["config.json", "generation_config.json", "special_tokens_map.json", "preprocessor_config.json"];

/// Downloads the model `id` into `models/OWNER/NAME`.
///
/// hf-hub downloads the files, and resumes an interrupted download, in its own directory `.hub`.
/// Only when all files are complete do they appear under the model's name, as hard links.
pub(super) fn pull(id: &str, sources: &Sources, models: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let target = models.join(id);
    if target.is_dir() {
        return Ok(target);
    }
    let hub_cache = models.join(".hub");
    std::fs::create_dir_all(&hub_cache).map_err(Error::io(&hub_cache))?;
    let api = connect(sources, &hub_cache).map_err(|error| failed(id, &error))?;
    let main = api.model(id.to_owned());
    let info = main.info().map_err(|error| failed(id, &error))?;
    // Pin one commit, in case the model changes during the download.
    let repo = match is_plain(&info.sha) {
        true => api.repo(Repo::with_revision(id.to_owned(), RepoType::Model, info.sha)),
        false => main,
    };
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let wanted = choose(id, &names)?;

    let mut sizes = Vec::with_capacity(wanted.len());
    for &name in &wanted {
        let file = api.metadata(&repo.url(name)).map_err(|error| failed(id, &error))?;
        // hf-hub uses these as path components.
        if !is_plain(file.etag()) || !is_plain(file.commit_hash()) {
            let problem = format!("the hub's response for {name} of {id} is invalid");
            return Err(Error::unsupported(problem, "check HF_ENDPOINT: is it the address of a hub?"));
        }
        sizes.push(file.size() as u64);
    }
    let total = sizes.iter().sum();

    let owner = target.parent().unwrap_or(models);
    std::fs::create_dir_all(owner).map_err(io_error(owner, total))?;
    let work = tempfile::Builder::new().prefix(".pull-").tempdir_in(owner).map_err(io_error(owner, total))?;
    let mut before = 0;
    for (name, size) in wanted.into_iter().zip(sizes) {
        let bar = FileProgress { item: name.to_owned(), before, done: 0, total, progress };
        let file = fetch(id, &repo, name, bar)?;
        let found = std::fs::metadata(&file).map_err(Error::io(&file))?.len();
        if found != size {
            let problem = format!("the download of {name} of {id} has {found} bytes instead of {size}");
            // Otherwise the next attempt would take it for the complete file.
            std::fs::remove_file(&file).map_err(Error::io(&file))?;
            return Err(Error::unsupported(problem, "the connection was interrupted: run the pull again"));
        }
        link_or_copy(&file, &work.path().join(name)).map_err(io_error(&target, total))?;
        before += size;
    }
    match std::fs::rename(work.path(), &target) {
        Ok(()) => Ok(target),
        // A concurrent pull of the same model finished first.
        Err(_) if target.is_dir() => Ok(target),
        Err(error) => Err(Error::io(target)(error)),
    }
}

fn connect(sources: &Sources, hub_cache: &Path) -> std::result::Result<Api, ApiError> {
    let mut builder = ApiBuilder::from_cache(Cache::new(hub_cache.to_owned()))
        .with_progress(false)
        .with_retries(3)
        .with_token(sources.token.clone());
    if let Some(endpoint) = &sources.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    builder.build()
}

/// Selects the files to download: configuration, tokenizer, chat template, and the weights once.
fn choose<'a>(id: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
    let plain = || names.iter().map(String::as_str).filter(|name| is_plain(name));
    let mut wanted: Vec<&str> = plain()
        .filter(|name| {
            CONFIG_FILES.contains(name) || name.starts_with("tokenizer") || name.starts_with("chat_template")
        })
        .collect();
    // Some repositories contain the weights twice, for other programs under other names.
    let single = plain().find(|&name| name == "model.safetensors");
    let sharded = plain().any(|name| name == "model.safetensors.index.json");
    let weights: Vec<&str> = match single {
        Some(single) => vec![single],
        None if sharded => plain()
            .filter(|name| {
                *name == "model.safetensors.index.json" || (name.starts_with("model") && name.ends_with(".safetensors"))
            })
            .collect(),
        None => plain().filter(|name| name.ends_with(".safetensors")).collect(),
    };
    if weights.is_empty() {
        return Err(Error::unsupported(
            format!("the model {id} has no safetensors weights"),
            "choose a model, or a revision of it, that has a model.safetensors; pull does not download pickled weights",
        ));
    }
    wanted.extend(weights);
    Ok(wanted)
}

fn fetch(id: &str, repo: &ApiRepo, name: &str, bar: FileProgress<'_>) -> Result<PathBuf> {
    let file = repo.download_with_progress(name, bar).map_err(|error| failed(id, &error))?;
    // hf-hub returns a symbolic link; resolve it so that the file itself is linked or removed.
    std::fs::canonicalize(&file).map_err(Error::io(file))
}

/// Hard-links a file, or copies it if the file system has no hard links.
fn link_or_copy(file: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(file, to).or_else(|_| std::fs::copy(file, to).map(|_| ()))
}

fn failed(id: &str, error: &ApiError) -> Error {
    let message = error.to_string();
    let remedy = if message.contains("status: 401") || message.contains("status: 403") {
        "the model may not exist, or require accepting a license: accept it on the model's page and set HF_TOKEN"
    } else if message.contains("status: 404") {
        "check the spelling of the id: owner/name"
    } else if matches!(error, ApiError::LockAcquisition(_)) {
        "another program is downloading it: wait until it has finished"
    } else {
        "check the network; HF_ENDPOINT sets the URL of another hub"
    };
    Error::unsupported(format!("the model {id} cannot be downloaded: {message}"), remedy)
}

/// Converts hf-hub's progress on one file to the progress of the whole pull.
struct FileProgress<'a> {
    item: String,
    before: u64,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl hf_hub::api::Progress for FileProgress<'_> {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.done = 0;
        self.update(0);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        let done = self.before + self.done;
        (self.progress)(Progress::Downloading { item: self.item.clone(), done, total: self.total });
    }

    fn finish(&mut self) {}
}
