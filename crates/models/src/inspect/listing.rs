//! A directory's files, read once; and small files, read only up to the size that such files have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, Result};

/// What Git leaves in the place of a large file that was not fetched.
pub(super) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// No file of settings that anyone needs is longer; the longest known, a tokenizer's, has a few megabytes.
const LONGEST_JSON: u64 = 32 << 20;

/// Directories with more entries are listed no further: no model has as many files.
const MOST_ENTRIES: usize = 100_000;

/// The files and directories inside a directory.
pub(super) struct Listing {
    pub(super) dir: PathBuf,
    /// Regular files, or links to such, with their sizes.
    files: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
}

impl Listing {
    pub(super) fn read(dir: &Path) -> io::Result<Listing> {
        let (mut files, mut dirs) = (BTreeMap::new(), BTreeSet::new());
        for entry in std::fs::read_dir(dir)?.take(MOST_ENTRIES).flatten() {
            // Links are followed, since hubs keep their files behind links; those that lead nowhere are not there. Pipes and
            // devices are left out, because opening one may wait forever.
            let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
            let name = entry.file_name().to_string_lossy().into_owned();
            if metadata.is_dir() {
                dirs.insert(name);
            } else if metadata.is_file() {
                files.insert(name, metadata.len());
            }
        }
        Ok(Listing { dir: dir.to_owned(), files, dirs })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }

    pub(super) fn has_dir(&self, dir: &str) -> bool {
        self.dirs.contains(dir)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.iter().map(|(name, size)| (name.as_str(), *size))
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = &str> {
        self.dirs.iter().map(String::as_str)
    }

    /// The files whose names end so.
    pub(super) fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a str> {
        self.files().map(|(name, _)| name).filter(move |name| name.ends_with(end))
    }

    /// The sizes of these files, together.
    pub(super) fn bytes<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> u64 {
        names.into_iter().filter_map(|name| self.files.get(name)).fold(0, |sum, size| sum.saturating_add(*size))
    }

    /// A file that is not longer than `most`; `None` where there is none.
    pub(super) fn contents(&self, file: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let Some(&size) = self.files.get(file) else { return Ok(None) };
        let path = self.dir.join(file);
        if size > most {
            let problem = format!("{size} bytes, where no such file has more than {most}");
            return Err(Error::invalid(path, problem, "get the file anew from where the model came from"));
        }
        let bytes = first_bytes(&path, most).map_err(Error::io(&path))?;
        if bytes.starts_with(LFS_POINTER) {
            let remedy = "run `git lfs pull` in the model's directory";
            return Err(Error::invalid(path, "this is a Git LFS pointer, not the file itself", remedy));
        }
        Ok(Some(bytes))
    }

    /// A file that holds a JSON object; `None` where there is none.
    pub(super) fn json(&self, file: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.contents(file, LONGEST_JSON)? else { return Ok(None) };
        let wrong = |problem: String| {
            Error::invalid(self.dir.join(file), problem, "get the file anew from where the model came from")
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not valid JSON: {error}")))?;
        if value.is_object() { Ok(Some(value)) } else { Err(wrong("not a JSON object".into())) }
    }
}

/// The beginning of a file.
pub(super) fn first_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
