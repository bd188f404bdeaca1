//! Directories for tests to look at: golden models, and others made of a few files.

use std::fs;
use tempfile::TempDir;

pub use golden::path as golden;

/// A directory of these files.
pub fn made(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, contents) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, contents).expect("written");
    }
    dir
}
