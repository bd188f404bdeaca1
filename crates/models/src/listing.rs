//! A directory listing that is read once, and size-limited reads of its files.

use std::io;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde_json::Value;

use crate::files::{FETCH_LFS, LFS_POINTER, open_regular, read_settings, too_long};
use crate::{Error, Result, json};

/// Listing stops after this many entries; no model has as many files.
const MAX_ENTRIES: usize = 100_000;

/// The files and directories inside a directory, in order of name.
pub(crate) struct Listing {
    pub(crate) dir: PathBuf,
    entries: Vec<(String, EntryKind)>,
}

/// File type as the directory records it, without a `stat` of the entry.
#[derive(Clone, Copy, PartialEq)]
enum EntryKind {
    File,
    Dir,
    /// Hub caches store files as symbolic links. They are resolved on demand.
    Link,
    /// Pipes and devices: opening one may block.
    Other,
}

impl Listing {
    pub(crate) fn read(dir: &Path) -> io::Result<Listing> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)?.take(MAX_ENTRIES).flatten() {
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_file() => EntryKind::File,
                Ok(kind) if kind.is_dir() => EntryKind::Dir,
                Ok(kind) if kind.is_symlink() => EntryKind::Link,
                _ => EntryKind::Other,
            };
            entries.push((entry.file_name().to_string_lossy().into_owned(), kind));
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(Listing { dir: dir.to_owned(), entries })
    }

    /// Whether the directory has neither files nor directories; dangling links do not count.
    pub(crate) fn is_empty(&self) -> bool {
        !self
            .entries
            .iter()
            .any(|(name, kind)| self.is(name, *kind, EntryKind::File) || self.is(name, *kind, EntryKind::Dir))
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.kind(file).is_some_and(|kind| self.is(file, kind, EntryKind::File))
    }

    pub(crate) fn has_dir(&self, dir: &str) -> bool {
        self.kind(dir).is_some_and(|kind| self.is(dir, kind, EntryKind::Dir))
    }

    /// The names of the files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(name, kind)| self.is(name, *kind, EntryKind::File)).map(|(name, _)| name.as_str())
    }

    /// The names of the directories.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(name, kind)| self.is(name, *kind, EntryKind::Dir)).map(|(name, _)| name.as_str())
    }

    /// Paths of the subdirectories. Links are followed unless they lead to a parent (a cycle).
    pub(crate) fn inner_dirs(&self) -> impl Iterator<Item = PathBuf> {
        let of_kind = |kind: &EntryKind| matches!(kind, EntryKind::Dir | EntryKind::Link);
        self.entries.iter().filter(move |(_, kind)| of_kind(kind)).filter_map(|(name, kind)| {
            let path = self.dir.join(name);
            match kind {
                EntryKind::Dir => Some(path),
                _ => {
                    let (to, here) = (path.canonicalize().ok()?, self.dir.canonicalize().ok()?);
                    (to.is_dir() && !here.starts_with(&to)).then_some(path)
                }
            }
        })
    }

    /// Names of the files with this suffix.
    pub(crate) fn files_with_suffix<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.entries.iter().filter(move |(name, _)| name.ends_with(suffix));
        named.filter(|(name, kind)| self.is(name, *kind, EntryKind::File)).map(|(name, _)| name.as_str())
    }

    /// Total size of these files.
    pub(crate) fn bytes<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> u64 {
        let sizes = names.into_iter().filter(|name| self.has(name)).map(|name| self.size(name));
        sizes.fold(0, u64::saturating_add)
    }

    fn size(&self, file: &str) -> u64 {
        std::fs::metadata(self.dir.join(file)).map_or(0, |metadata| metadata.len())
    }

    fn kind(&self, name: &str) -> Option<EntryKind> {
        let at = self.entries.binary_search_by(|(entry, _)| entry.as_str().cmp(name)).ok()?;
        Some(self.entries[at].1)
    }

    /// Whether an entry is of a kind; links are resolved.
    fn is(&self, name: &str, kind: EntryKind, wanted: EntryKind) -> bool {
        if kind != EntryKind::Link {
            return kind == wanted;
        }
        std::fs::metadata(self.dir.join(name)).is_ok_and(|to| match wanted {
            EntryKind::File => to.is_file(),
            EntryKind::Dir => to.is_dir(),
            EntryKind::Link | EntryKind::Other => false,
        })
    }

    /// Memory-maps a file of at most `limit` bytes; `None` if it does not exist.
    pub(crate) fn map_file(&self, file: &str, limit: u64) -> Result<Option<Mmap>> {
        let path = self.dir.join(file);
        match (self.has(file), self.size(file)) {
            (false, _) => return Ok(None),
            (true, 0) => return Err(Error::invalid(path, "the file is empty", "download it again")),
            (true, size) if size > limit => return Err(too_long(path, size, limit)),
            _ => {}
        }
        let opened = open_regular(&path)?;
        // SAFETY: the map is read-only. If another process truncates the file while it is mapped,
        // reading it raises SIGBUS; this cannot be ruled out for mapped files.
        let map = unsafe { Mmap::map(&opened) }.map_err(Error::io(&path))?;
        if map.starts_with(LFS_POINTER) {
            return Err(Error::invalid(path, "this is a Git LFS pointer, not the file itself", FETCH_LFS));
        }
        Ok(Some(map))
    }

    /// Reads a JSON file as bytes; `None` if it does not exist.
    pub(crate) fn settings(&self, file: &str) -> Result<Option<Vec<u8>>> {
        if self.has(file) { read_settings(&self.dir.join(file)).map(Some) } else { Ok(None) }
    }

    /// Reads a JSON object; `None` if the file does not exist.
    pub(crate) fn json(&self, file: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.settings(file)? else { return Ok(None) };
        let path = self.dir.join(file);
        let value = json::parse(&bytes, &path)?;
        if value.is_object() { Ok(Some(value)) } else { Err(json::not_an_object(&path)) }
    }
}
