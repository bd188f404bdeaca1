//! The description of an attached adapter.

use std::path::PathBuf;

/// An attached adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterRecord {
    /// The name by which rows refer to it.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// The base model that its configuration names.
    pub base: Option<String>,
    /// Number of projections that it changes.
    pub projections: usize,
    /// Largest rank of its updates.
    pub rank: usize,
    /// Bytes in memory.
    pub bytes: usize,
}
