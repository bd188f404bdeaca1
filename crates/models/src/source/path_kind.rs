//! The kind of thing at a path, decided by file names and first bytes.

use crate::adapter;
use crate::files::first_bytes;
use crate::listing::Listing;
use std::path::{Path, PathBuf};

/// First bytes of a GGUF file.
const GGUF_MAGIC: &[u8] = b"GGUF";

/// The kind of thing at a path. Loading, inspection and adapters all use this; the extension of a
/// file decides nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PathKind {
    /// A directory with a `config.json`.
    Directory,
    /// A GGUF file: the path itself, or the only one in a directory without `config.json`.
    Gguf(PathBuf),
    /// The directory of an adapter.
    Adapter,
    /// Nothing that can be opened as a model.
    NoModel,
}

impl PathKind {
    pub(crate) fn of(path: &Path) -> PathKind {
        if adapter::is_adapter(path) {
            return PathKind::Adapter;
        }
        if path.join("config.json").is_file() {
            return PathKind::Directory;
        }
        match Listing::read(path) {
            Ok(listing) => PathKind::of_listing(&listing),
            Err(_) if is_gguf(path) => PathKind::Gguf(path.to_path_buf()),
            Err(_) => PathKind::NoModel,
        }
    }

    /// The kind of a directory that is neither an adapter nor has a `config.json`.
    pub(crate) fn of_listing(listing: &Listing) -> PathKind {
        match gguf_files(listing)[..] {
            [only] => PathKind::Gguf(listing.dir.join(only)),
            _ => PathKind::NoModel,
        }
    }
}

/// Names of the GGUF files in a directory. If no file has the contents of one, those that are
/// named `.gguf`: opening one reports why it is not.
pub(crate) fn gguf_files(listing: &Listing) -> Vec<&str> {
    /// Limit of files opened. Directories of GGUF files have few others.
    const MAX_OPENED: usize = 64;
    let by_contents: Vec<&str> =
        listing.files().take(MAX_OPENED).filter(|name| is_gguf(&listing.dir.join(name))).collect();
    if by_contents.is_empty() { listing.files_with_suffix(".gguf").collect() } else { by_contents }
}

/// Whether a file begins as a GGUF file does. Pipes and devices are not opened: that may block.
fn is_gguf(path: &Path) -> bool {
    path.is_file() && first_bytes(path, GGUF_MAGIC.len() as u64).is_ok_and(|start| start == GGUF_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn first_bytes_decide_and_not_the_extension() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| {
            fs::write(dir.path().join(name), bytes).expect("written");
            dir.path().join(name)
        };
        let blob = write("blob", b"GGUF....");
        let text = write("notes.gguf", b"not a model");
        assert_eq!(PathKind::of(&blob), PathKind::Gguf(blob.clone()));
        assert_eq!(PathKind::of(&text), PathKind::NoModel);
        // The only file with the contents counts, whatever the others are named.
        assert_eq!(PathKind::of(dir.path()), PathKind::Gguf(blob));
        write("second", b"GGUF");
        assert_eq!(PathKind::of(dir.path()), PathKind::NoModel);
        write(adapter::CONFIG, b"{}");
        assert_eq!(PathKind::of(dir.path()), PathKind::Adapter);
        write("config.json", b"{}");
        assert_eq!(PathKind::of(dir.path()), PathKind::Adapter, "an adapter may keep its base model's configuration");
        write("model.safetensors", b"");
        assert_eq!(PathKind::of(dir.path()), PathKind::Directory);
        assert_eq!(PathKind::of(&dir.path().join("nothing")), PathKind::NoModel);
    }
}
