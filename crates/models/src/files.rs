//! Reads of files that belong to a model: regular files only, and small ones with a size limit.
//!
//! A model's directory is untrusted. It may contain a FIFO, whose `open` blocks forever, or a link
//! to a device such as `/dev/zero`, which never ends. So every file of a model is opened by
//! [`open_regular`], and every file that is read whole by [`read_small`] or
//! [`read_small_if_exists`].

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Start of a Git LFS pointer, which stands in for a file that was not fetched.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Remedy for a Git LFS pointer.
pub(crate) const FETCH_LFS: &str = "run `git lfs pull` in the model's directory";

/// Size limit of JSON files with settings: `config.json`, `tokenizer_config.json` and others.
pub(crate) const MAX_SETTINGS_BYTES: u64 = 32 << 20;

/// Size limit of vocabularies; the largest real `tokenizer.json` has about 35 MB.
pub(crate) const MAX_VOCABULARY_BYTES: u64 = 256 << 20;

/// Opens a file for reading. Links are followed.
///
/// # Errors
/// If it does not exist, or is a directory, a pipe, a socket or a device.
pub fn open_regular(path: &Path) -> Result<File> {
    // Checked before opening, because opening a FIFO blocks and opening a device may act on it.
    check_regular(path, &std::fs::metadata(path).map_err(Error::io(path))?)?;
    let file = File::open(path).map_err(Error::io(path))?;
    // Checked again, in case the path was replaced in between.
    check_regular(path, &file.metadata().map_err(Error::io(path))?)?;
    Ok(file)
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`]; if the file is larger than `limit`.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = open_regular(path)?;
    let size = file.metadata().map_err(Error::io(path))?.len();
    if size > limit {
        return Err(too_long(path, size, limit));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // The limit is kept even if the file grows now, or if it states no size, as in /proc.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > limit {
        return Err(too_long(path, bytes.len() as u64, limit));
    }
    Ok(bytes)
}

/// Like [`read_small`]; `None` if the file does not exist.
pub fn read_small_if_exists(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match read_small(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a JSON file of settings as bytes.
pub(crate) fn read_settings(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_small(path, MAX_SETTINGS_BYTES)?;
    match bytes.starts_with(LFS_POINTER) {
        true => Err(Error::invalid(path, "this is a Git LFS pointer, not the file itself", FETCH_LFS)),
        false => Ok(bytes),
    }
}

/// Reads the first `limit` bytes of a file.
pub(crate) fn first_bytes(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(limit.min(4096) as usize);
    open_regular(path)?.take(limit).read_to_end(&mut bytes).map_err(Error::io(path))?;
    Ok(bytes)
}

pub(crate) fn too_long(path: impl Into<PathBuf>, size: u64, limit: u64) -> Error {
    let problem = format!("the file has {size} bytes; the limit for such files is {limit}");
    Error::invalid(path, problem, "download the file again")
}

fn check_regular(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let problem = format!("this is {}, not a regular file", kind_of(metadata));
    Err(Error::invalid(path, problem, "replace it by the file itself: download it again"))
}

fn kind_of(metadata: &std::fs::Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a directory";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a FIFO (named pipe)";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_block_device() || kind.is_char_device() {
            return "a device";
        }
    }
    "a special file"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_at_most_the_limit_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("a");
        std::fs::write(&file, b"12345").expect("written");
        assert_eq!(read_small(&file, 5).expect("read"), b"12345");
        let error = read_small(&file, 4).expect_err("too long").to_string();
        assert!(error.ends_with("the file has 5 bytes; the limit for such files is 4"), "{error}");
        assert!(read_small_if_exists(&dir.path().join("b"), 4).expect("no error").is_none());
        assert!(read_small(dir.path(), 4).expect_err("a directory").to_string().contains("this is a directory"));
        assert_eq!(first_bytes(&file, 2).expect("read"), b"12");
    }

    #[cfg(unix)]
    #[test]
    fn f13_links_to_devices_and_pipes_are_refused_without_blocking() {
        let dir = tempfile::tempdir().expect("a directory");
        let (link, pipe) = (dir.path().join("zero"), dir.path().join("pipe"));
        std::os::unix::fs::symlink("/dev/zero", &link).expect("linked");
        assert!(read_small(&link, 100).expect_err("refused").to_string().contains("this is a device"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
        assert!(read_small(&pipe, 100).expect_err("refused").to_string().contains("this is a FIFO"));
        assert!(first_bytes(&pipe, 4).is_err() && open_regular(&pipe).is_err());
    }
}
