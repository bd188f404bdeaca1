//! Directories for the tests of `inspect`: golden models, and temporary ones with a few files.

use std::fs;
use tempfile::TempDir;

pub use golden::path as golden;

/// Creates a temporary directory with these files.
pub fn dir_with(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, contents) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("created");
        fs::write(path, contents).expect("written");
    }
    dir
}
