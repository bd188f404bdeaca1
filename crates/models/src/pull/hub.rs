//! A model from a hub, by its id.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::{Progress, Sources, io_error, is_plain};
use crate::{Error, Result};

/// The files of a model beside its weights.
const SMALL: [&str; 4] =
    ["config.json", "generation_config.json", "special_tokens_map.json", "preprocessor_config.json"];

/// Fetches the model `id` into `models/OWNER/NAME`.
///
/// hf-hub collects the files, and resumes a broken download, in a directory of its own beside the models. Only when
/// all are there do they appear under the model's name, as links to the same data.
pub(super) fn pull(id: &str, sources: &Sources, models: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let target = models.join(id);
    if target.is_dir() {
        return Ok(target);
    }
    let collected = models.join(".hub");
    std::fs::create_dir_all(&collected).map_err(Error::io(&collected))?;
    let api = connect(sources, &collected).map_err(|error| failed(id, &error))?;
    let main = api.model(id.to_owned());
    let info = main.info().map_err(|error| failed(id, &error))?;
    // Everything is taken from one commit, also if the model is changed meanwhile.
    let repo = match is_plain(&info.sha) {
        true => api.repo(Repo::with_revision(id.to_owned(), RepoType::Model, info.sha)),
        false => main,
    };
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let wanted = choose(id, &names)?;

    let mut sizes = Vec::with_capacity(wanted.len());
    for &name in &wanted {
        let file = api.metadata(&repo.url(name)).map_err(|error| failed(id, &error))?;
        // hf-hub makes paths of these.
        if !is_plain(file.etag()) || !is_plain(file.commit_hash()) {
            let problem = format!("the hub's answer for {name} of {id} is not one that a hub gives");
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
        let bar = Bar { item: name.to_owned(), before, done: 0, total, progress };
        let file = fetch(id, &repo, name, bar)?;
        let found = std::fs::metadata(&file).map_err(Error::io(&file))?.len();
        if found != size {
            let problem = format!("{name} of {id} arrived with {found} bytes instead of {size}");
            // Left in place it would be taken for the whole file by the next attempt.
            std::fs::remove_file(&file).map_err(Error::io(&file))?;
            return Err(Error::unsupported(problem, "the connection broke off: run the pull again"));
        }
        place(&file, &work.path().join(name)).map_err(io_error(&target, total))?;
        before += size;
    }
    match std::fs::rename(work.path(), &target) {
        Ok(()) => Ok(target),
        // Another pull of the same model was first.
        Err(_) if target.is_dir() => Ok(target),
        Err(error) => Err(Error::io(target)(error)),
    }
}

fn connect(sources: &Sources, collected: &Path) -> std::result::Result<Api, ApiError> {
    let mut builder = ApiBuilder::from_cache(Cache::new(collected.to_owned()))
        .with_progress(false)
        .with_retries(3)
        .with_token(sources.token.clone());
    if let Some(endpoint) = &sources.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    builder.build()
}

/// The files to fetch: settings, tokenizer, template, and the weights once, in the form that is read.
fn choose<'a>(id: &str, names: &'a [String]) -> Result<Vec<&'a str>> {
    let plain = || names.iter().map(String::as_str).filter(|name| is_plain(name));
    let mut wanted: Vec<&str> = plain()
        .filter(|name| SMALL.contains(name) || name.starts_with("tokenizer") || name.starts_with("chat_template"))
        .collect();
    // Some models are there twice, for other programs under other names.
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
            "choose a model, or a revision of it, that has a model.safetensors; pickled weights are never read",
        ));
    }
    wanted.extend(weights);
    Ok(wanted)
}

fn fetch(id: &str, repo: &ApiRepo, name: &str, bar: Bar<'_>) -> Result<PathBuf> {
    let file = repo.download_with_progress(name, bar).map_err(|error| failed(id, &error))?;
    // hf-hub gives a symbolic link; the file itself is what is to be linked or removed.
    std::fs::canonicalize(&file).map_err(Error::io(file))
}

/// The same data under another name; a copy where the file system knows no links.
fn place(file: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(file, to).or_else(|_| std::fs::copy(file, to).map(|_| ()))
}

fn failed(id: &str, error: &ApiError) -> Error {
    let said = error.to_string();
    let remedy = if said.contains("status: 401") || said.contains("status: 403") {
        "the model may not exist, or ask for an accepted licence: accept it on the model's page and set HF_TOKEN"
    } else if said.contains("status: 404") {
        "check the id: owner/name, as the hub writes it"
    } else if matches!(error, ApiError::LockAcquisition(_)) {
        "another program is downloading it: wait for that one"
    } else {
        "check the network; HF_ENDPOINT gives the address of another hub"
    };
    Error::unsupported(format!("the model {id} cannot be downloaded: {said}"), remedy)
}

/// Passes hf-hub's progress on one file on as the progress of the whole.
struct Bar<'a> {
    item: String,
    before: u64,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl hf_hub::api::Progress for Bar<'_> {
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
