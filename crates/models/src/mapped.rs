//! Memory-mapped model files, and whether they still hold the bytes that were loaded.
//!
//! Weights without a packed form and the decoders of autoencoders are read from the mapped file
//! while the model runs. Writing to the file changes them, and reading past the end of a truncated
//! file raises SIGBUS, which ends the process. So the file is compared with its state at the load
//! before and after each pass ([`BackingFile`]), and while it is loaded. What remains is a file
//! that is truncated during a pass. A file that is replaced by another, as downloads and `mv` do,
//! is no change: the mapping keeps the old one.

use crate::files::open_regular;
use crate::{Error, Result};
use memmap2::Mmap;
use pellucid_kernels::matrix::BackingFile;
use std::fs::{File, Metadata};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A mapped file, with its state when it was opened.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    file: File,
    path: PathBuf,
    opened: FileState,
}

/// The metadata that detects a change of a file's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    len: u64,
    modified: Option<SystemTime>,
    /// Device and inode (Unix).
    inode: Option<(u64, u64)>,
    /// Time of the last change of contents or metadata, which no program can set (Unix).
    changed: Option<(i64, i64)>,
    /// Names of the file (Unix).
    links: u64,
}

impl FileState {
    pub(crate) fn of(metadata: &Metadata) -> FileState {
        #[cfg(unix)]
        let (inode, changed, links) = {
            use std::os::unix::fs::MetadataExt;
            let changed = (metadata.ctime(), metadata.ctime_nsec());
            (Some((metadata.dev(), metadata.ino())), Some(changed), metadata.nlink())
        };
        #[cfg(not(unix))]
        let (inode, changed, links) = (None, None, 1);
        FileState { len: metadata.len(), modified: metadata.modified().ok(), inode, changed, links }
    }
}

impl MappedFile {
    /// Maps a regular file.
    pub(crate) fn open(path: &Path) -> Result<MappedFile> {
        let file = open_regular(path)?;
        let opened = FileState::of(&file.metadata().map_err(Error::io(path))?);
        // SAFETY: the map is read-only. Readers call `check` first, because a truncated file raises
        // SIGBUS; a file that is truncated right after the check cannot be ruled out.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path))?;
        let mapped = MappedFile { map, file, path: path.to_owned(), opened };
        mapped.check_loading()?;
        Ok(mapped)
    }

    /// Releases the resident pages of a range (`madvise(MADV_DONTNEED)`); a later read loads them
    /// from disk again.
    pub(crate) fn release_pages(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if !range.is_empty() {
            // SAFETY: the mapping is read-only and file-backed, so released pages are reloaded with
            // the same bytes. If the call fails, the pages stay resident, which is harmless.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Copies bytes from `at` on: read from the file, so that mapped pages do not become resident.
    pub(crate) fn copy(&self, at: usize, out: &mut [u8]) {
        #[cfg(unix)]
        if std::os::unix::fs::FileExt::read_exact_at(&self.file, out, at as u64).is_ok() {
            return;
        }
        out.copy_from_slice(&self.map[at..at + out.len()]);
    }

    /// Like [`check`](BackingFile::check), while the file is loaded.
    pub(crate) fn check_loading(&self) -> Result<()> {
        let remedy = "wait until nothing writes to it, and load it again";
        self.check().map_err(|problem| Error::invalid(&self.path, problem, remedy))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl BackingFile for MappedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self) -> std::result::Result<(), String> {
        let now = match self.file.metadata() {
            Ok(metadata) => FileState::of(&metadata),
            Err(error) => return Err(format!("the file can no longer be read ({error})")),
        };
        if now == self.opened {
            return Ok(());
        }
        let was = &self.opened;
        if now.len != was.len {
            return Err(format!("the file has {} bytes; it had {} when it was opened", now.len, was.len));
        }
        // A name that was added or removed changes `changed` and `links`; a renamed file is not
        // found under its name. Otherwise its contents may have been written and its time set back.
        let is_named = || std::fs::metadata(&self.path).is_ok_and(|found| FileState::of(&found).inode == now.inode);
        if now.modified != was.modified || (now.links == was.links && is_named()) {
            return Err("the file was written to after it was opened".to_owned());
        }
        Ok(())
    }
}
