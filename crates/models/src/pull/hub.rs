//! Downloads a model from a hub by its id.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::http::{Client, FileInfo, HttpError};
use super::work::WorkDir;
use super::{Progress, Sources, io_error, is_plain, sha256};
use crate::{Error, Result};

/// Configuration files of a model.
const CONFIG_FILES: [&str; 4] =
    ["config.json", "generation_config.json", "special_tokens_map.json", "preprocessor_config.json"];
/// How often a download is tried again that got nothing further.
const RETRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(300);
const BUFFER: usize = 1 << 17;

/// The hub's description of a model.
#[derive(Deserialize)]
struct ModelInfo {
    #[serde(default)]
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// Downloads the model `id` into `models/OWNER/NAME`.
///
/// An unfinished file is `ETAG.part` in the work directory, a finished one `COMMIT/NAME`. An
/// interrupted pull leaves both for the next one. Only when all files are complete does the
/// directory get the model's name.
pub(super) fn pull(id: &str, sources: &Sources, models: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let target = models.join(id);
    if target.is_dir() {
        return Ok(target);
    }
    let work = WorkDir::open(models, id, true, sources, progress)?;
    // A concurrent pull may have finished while this one waited.
    if target.is_dir() {
        return Ok(target);
    }
    let client = Client::new(sources);
    let failed = |error| failed(id, &error);
    let answer = client.answer(&format!("/api/models/{id}/revision/main")).map_err(failed)?;
    let invalid = |of: &str| {
        let problem = format!("the hub's response for {of} is invalid");
        Error::unsupported(problem, "check HF_ENDPOINT: is it the address of a hub?")
    };
    let info: ModelInfo = serde_json::from_slice(&answer).map_err(|_| invalid(id))?;
    // One commit, in case the model changes during the download.
    let commit = if is_plain(&info.sha) { info.sha } else { "main".to_owned() };
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();

    let mut files = Vec::new();
    for name in choose(id, &names)? {
        let path = format!("/{id}/resolve/{commit}/{name}");
        let file = client.file_info(&path).map_err(failed)?;
        if !is_plain(&file.etag) {
            return Err(invalid(&format!("{name} of {id}")));
        }
        files.push((name, path, file));
    }
    let total = files.iter().map(|(_, _, file)| file.size).fold(0, u64::saturating_add);
    let finished = work.path().join(&commit);
    let owner = target.parent().unwrap_or(models);
    for dir in [owner, &finished] {
        fs::create_dir_all(dir).map_err(io_error(dir, total))?;
    }
    let mut download = Download { id, client: &client, sources, work: work.path(), progress, before: 0, total };
    for (name, path, file) in &files {
        let to = finished.join(name);
        if !fs::metadata(&to).is_ok_and(|found| found.len() == file.size) {
            let part = download.fetch(name, path, file)?;
            fs::rename(&part, &to).map_err(io_error(&to, total))?;
        }
        download.before += file.size;
    }
    fs::rename(&finished, &target).map_err(Error::io(&target))?;
    work.remove()?;
    Ok(target)
}

/// The download of a model's files.
struct Download<'a> {
    id: &'a str,
    client: &'a Client,
    sources: &'a Sources,
    work: &'a Path,
    progress: &'a mut dyn FnMut(Progress),
    /// Bytes of the finished files.
    before: u64,
    /// Bytes of all files.
    total: u64,
}

impl Download<'_> {
    /// Downloads a file, or the rest of it, and checks it.
    fn fetch(&mut self, name: &str, path: &str, info: &FileInfo) -> Result<PathBuf> {
        let part = self.work.join(format!("{}.part", info.etag));
        let opened = OpenOptions::new().create(true).append(true).open(&part);
        let mut file = opened.map_err(io_error(&part, self.total))?;
        let length_of = |file: &File| file.metadata().map(|found| found.len()).map_err(Error::io(&part));
        let mut idle = 0;
        loop {
            let start = length_of(&file)?;
            if start >= info.size {
                break;
            }
            let error = self.append(name, path, &mut file, start, info.size).map_err(|error| match error {
                FetchError::Ours(error) => error,
                FetchError::Disk(error) => io_error(&part, self.total)(error),
            })?;
            idle = if length_of(&file)? > start { 0 } else { idle + 1 };
            match error {
                Some(error) if idle > RETRIES || error.status().is_some_and(|code| code < 500) => {
                    return Err(failed(self.id, &error));
                }
                None if idle > RETRIES => break,
                _ => std::thread::sleep(RETRY_PAUSE * idle),
            }
        }
        if let Some(problem) = check(&part, info)? {
            // Otherwise the next attempt would continue it.
            fs::remove_file(&part).map_err(Error::io(&part))?;
            let problem = format!("the download of {name} of {} {problem}", self.id);
            return Err(Error::unsupported(problem, "run the pull again; if it happens again, do not use the model"));
        }
        file.sync_all().map_err(io_error(&part, self.total))?;
        Ok(part)
    }

    /// Appends what the hub sends from `start` on. A failure of the hub is a value: the download
    /// continues where it ended.
    fn append(
        &mut self,
        name: &str,
        path: &str,
        file: &mut File,
        start: u64,
        size: u64,
    ) -> std::result::Result<Option<HttpError>, FetchError> {
        let (starts_there, response) = match self.client.file(path, start) {
            Ok(found) => found,
            Err(error) => return Ok(Some(error)),
        };
        let mut length = start;
        if !starts_there {
            file.set_len(0).map_err(FetchError::Disk)?;
            length = 0;
        }
        // One byte more than the file has shows that the answer is another file.
        let mut body = response.into_body().into_reader().take(size - length + 1);
        let mut buffer = vec![0; BUFFER];
        loop {
            self.sources.check_interrupt().map_err(FetchError::Ours)?;
            (self.progress)(Progress::Downloading {
                item: name.to_owned(),
                done: self.before + length.min(size),
                total: self.total,
            });
            match body.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(count) => {
                    file.write_all(&buffer[..count]).map_err(FetchError::Disk)?;
                    length += count as u64;
                }
                Err(error) => return Ok(Some(ureq::Error::Io(error).into())),
            }
        }
    }
}

/// A failure that ends the pull.
enum FetchError {
    /// The part cannot be written.
    Disk(std::io::Error),
    /// An interrupt.
    Ours(Error),
}

/// Compares a downloaded file with the hub's description; returns what is wrong with it.
fn check(part: &Path, info: &FileInfo) -> Result<Option<String>> {
    let mut file = File::open(part).map_err(Error::io(part))?;
    let length = file.metadata().map_err(Error::io(part))?.len();
    if length != info.size {
        let count = if length > info.size { "more".to_owned() } else { format!("{length} bytes") };
        return Ok(Some(format!("has {count} instead of {} bytes", info.size)));
    }
    // Large files have their SHA-256 as etag, small ones that of their git object.
    if info.etag.len() == 64 && info.etag.chars().all(|c| c.is_ascii_hexdigit()) {
        let found = sha256(&mut file).map_err(Error::io(part))?;
        if !found.eq_ignore_ascii_case(&info.etag) {
            return Ok(Some(format!("has the SHA-256 {found} instead of {}", info.etag)));
        }
    }
    Ok(None)
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

fn failed(id: &str, error: &HttpError) -> Error {
    let remedy = match error.status() {
        Some(401 | 403) => {
            "the model may not exist, or require accepting a license: accept it on the model's page and set HF_TOKEN"
        }
        Some(404) => "check the spelling of the id: owner/name",
        _ => "check the network; HF_ENDPOINT sets the URL of another hub",
    };
    Error::unsupported(format!("the model {id} cannot be downloaded: {error}"), remedy)
}
