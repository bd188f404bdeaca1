//! A directory's entries, read once; and small files, read only up to the size that such files have.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::Value;

use crate::{Error, Result, json};

/// What Git leaves in the place of a large file that was not fetched.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// How to get what a pointer of Git LFS stands for.
pub(crate) const FETCH_LFS: &str = "run `git lfs pull` in the model's directory";

/// No file of settings that anyone needs is longer; the longest known, a tokenizer's, has a few megabytes.
const LONGEST_JSON: u64 = 32 << 20;

/// Directories with more entries are listed no further: no model has as many files.
const MOST_ENTRIES: usize = 100_000;

/// The files and directories inside a directory, in order of name.
pub(crate) struct Listing {
    pub(crate) dir: PathBuf,
    entries: Vec<(String, Kind)>,
}

/// What the directory itself says about an entry, without a look at it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    File,
    Dir,
    /// Hubs keep their files behind links, so they are followed, but only when somebody asks.
    Link,
    /// Pipes and devices, of which opening one may wait forever.
    Other,
}

impl Listing {
    pub(crate) fn read(dir: &Path) -> io::Result<Listing> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)?.take(MOST_ENTRIES).flatten() {
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_file() => Kind::File,
                Ok(kind) if kind.is_dir() => Kind::Dir,
                Ok(kind) if kind.is_symlink() => Kind::Link,
                _ => Kind::Other,
            };
            entries.push((entry.file_name().to_string_lossy().into_owned(), kind));
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Listing { dir: dir.to_owned(), entries })
    }

    /// Whether nothing is there; links that lead nowhere are nothing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.entries.iter().any(|(name, kind)| self.is(name, *kind, Kind::File) || self.is(name, *kind, Kind::Dir))
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.kind(file).is_some_and(|kind| self.is(file, kind, Kind::File))
    }

    pub(crate) fn has_dir(&self, dir: &str) -> bool {
        self.kind(dir).is_some_and(|kind| self.is(dir, kind, Kind::Dir))
    }

    /// The names of the files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(name, kind)| self.is(name, *kind, Kind::File)).map(|(name, _)| name.as_str())
    }

    /// The names of the directories.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(name, kind)| self.is(name, *kind, Kind::Dir)).map(|(name, _)| name.as_str())
    }

    /// Directories inside that do not lead back to where we are: links are followed, circles are not.
    pub(crate) fn inner_dirs(&self) -> impl Iterator<Item = PathBuf> {
        let of_kind = |kind: &Kind| matches!(kind, Kind::Dir | Kind::Link);
        self.entries.iter().filter(move |(_, kind)| of_kind(kind)).filter_map(|(name, kind)| {
            let path = self.dir.join(name);
            match kind {
                Kind::Dir => Some(path),
                _ => {
                    let (to, here) = (path.canonicalize().ok()?, self.dir.canonicalize().ok()?);
                    (to.is_dir() && !here.starts_with(&to)).then_some(path)
                }
            }
        })
    }

    /// The files whose names end so.
    pub(crate) fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.entries.iter().filter(move |(name, _)| name.ends_with(end));
        named.filter(|(name, kind)| self.is(name, *kind, Kind::File)).map(|(name, _)| name.as_str())
    }

    /// The sizes of these files, together.
    pub(crate) fn bytes<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> u64 {
        let sizes = names.into_iter().filter(|name| self.has(name)).map(|name| self.size(name));
        sizes.fold(0, u64::saturating_add)
    }

    fn size(&self, file: &str) -> u64 {
        std::fs::metadata(self.dir.join(file)).map_or(0, |metadata| metadata.len())
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        let at = self.entries.binary_search_by(|(entry, _)| entry.as_str().cmp(name)).ok()?;
        Some(self.entries[at].1)
    }

    /// Whether an entry is of a kind, where a link is what it leads to.
    fn is(&self, name: &str, kind: Kind, wanted: Kind) -> bool {
        if kind != Kind::Link {
            return kind == wanted;
        }
        std::fs::metadata(self.dir.join(name)).is_ok_and(|to| match wanted {
            Kind::File => to.is_file(),
            Kind::Dir => to.is_dir(),
            Kind::Link | Kind::Other => false,
        })
    }

    /// A file that is not longer than `most`; `None` where there is none.
    pub(crate) fn contents(&self, file: &str, most: u64) -> Result<Option<Vec<u8>>> {
        if !self.has(file) {
            return Ok(None);
        }
        let path = self.dir.join(file);
        let bytes = first_bytes(&path, most + 1).map_err(Error::io(&path))?;
        if bytes.len() as u64 > most {
            return Err(too_long(path, self.size(file), most));
        }
        if bytes.starts_with(LFS_POINTER) {
            return Err(Error::invalid(path, "this is a Git LFS pointer, not the file itself", FETCH_LFS));
        }
        Ok(Some(bytes))
    }

    /// A file that is not longer than `most`, mapped, so that only what is looked at is read; `None` where there is none.
    pub(crate) fn mapped(&self, file: &str, most: u64) -> Result<Option<Mmap>> {
        let path = self.dir.join(file);
        match (self.has(file), self.size(file)) {
            (false, _) => return Ok(None),
            (true, 0) => return Err(Error::invalid(path, "the file is empty", "download it again")),
            (true, size) if size > most => return Err(too_long(path, size, most)),
            _ => {}
        }
        let opened = File::open(&path).map_err(Error::io(&path))?;
        // SAFETY: the map is private to reading. Should another program cut the file while it is mapped, reading it
        // ends the process; no program that reads models by mapping them can rule that out.
        let map = unsafe { Mmap::map(&opened) }.map_err(Error::io(&path))?;
        if map.starts_with(LFS_POINTER) {
            return Err(Error::invalid(path, "this is a Git LFS pointer, not the file itself", FETCH_LFS));
        }
        Ok(Some(map))
    }

    /// A file of settings, as it is; `None` where there is none.
    pub(crate) fn settings(&self, file: &str) -> Result<Option<Vec<u8>>> {
        self.contents(file, LONGEST_JSON)
    }

    /// A file that holds a JSON object; `None` where there is none.
    pub(crate) fn json(&self, file: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.settings(file)? else { return Ok(None) };
        let path = self.dir.join(file);
        let value = json::parse(&bytes, &path)?;
        if value.is_object() { Ok(Some(value)) } else { Err(json::not_an_object(&path)) }
    }
}

fn too_long(path: PathBuf, size: u64, most: u64) -> Error {
    let problem = format!("{size} bytes, where no such file has more than {most}");
    Error::invalid(path, problem, "get the file anew from where the model came from")
}

/// The beginning of a file.
pub(crate) fn first_bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(most.min(4096) as usize);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
