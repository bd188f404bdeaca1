//! The manifest of a store.

use crate::config::SessionConfig;
use crate::debug::DebugReport;
use crate::phases::PhaseRecord;
use crate::table::DataType;
use pellucid_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The newest schema of stores that this version reads and writes.
pub const SCHEMA: u32 = 1;

/// File name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";

/// A column of a store, with the op that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnOrigin {
    /// `examples` or `latents`.
    pub table: String,
    /// Name of the column.
    pub name: String,
    /// Its type.
    pub dtype: DataType,
    /// The op that wrote it last; `dataset` for those of the examples themselves.
    pub op: String,
}

/// What a store holds, and how it was computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Schema of the store.
    pub schema: u32,
    /// Name of the session.
    pub name: String,
    /// Time at which the session ended, in seconds since 1970.
    pub created: u64,
    /// Version of Pellucid.
    pub version: String,
    /// The model.
    pub model: ModelRecord,
    /// The autoencoders.
    pub saes: Vec<SaeRecord>,
    /// The dataset.
    pub dataset: DatasetRecord,
    /// The ops of the chain, with their versions.
    pub ops: Vec<OpRecord>,
    /// The columns, each with the op that wrote it.
    pub columns: Vec<ColumnOrigin>,
    /// The parts, in order.
    pub parts: Vec<PartRecord>,
    /// Hash of the contents of all tables: equal for equal results.
    pub content_hash: String,
    /// Time and memory of each phase.
    pub phases: Vec<PhaseRecord>,
    /// Results of the debug phase, if the session has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debug: Option<DebugReport>,
    /// The session, with all files and settings merged.
    pub config: SessionConfig,
}

/// The model of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// Name for display.
    pub name: String,
    /// SHA-256 of its files.
    pub fingerprint: String,
    /// Number of threads of the run.
    pub threads: usize,
}

/// An autoencoder of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaeRecord {
    /// Its path, or `builtin`.
    pub path: String,
    /// The site that it reconstructs.
    pub site: String,
    /// Number of latents.
    pub n_latents: usize,
    /// Whether the error of the reconstruction is added.
    pub error_term: bool,
    /// SHA-256 of its files.
    pub fingerprint: String,
}

/// The dataset of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRecord {
    /// Its path.
    pub path: PathBuf,
    /// SHA-256 of the prompts' tokens and labels.
    pub fingerprint: String,
    /// Number of examples.
    pub examples: usize,
    /// Number of tokens of all prompts.
    pub tokens: usize,
    /// Whether prompts start with the tokenizer's BOS token.
    pub starts_with_bos: bool,
}

/// An op of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRecord {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// A part of a store: consecutive examples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// Content key: hash of everything that its results depend on.
    pub key: String,
    /// For each table its file.
    pub files: BTreeMap<String, FileRecord>,
}

/// A file of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name in the directory of its table.
    pub file: String,
    /// Number of rows.
    pub rows: usize,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl Manifest {
    /// Reads the manifest of a store.
    pub(super) fn read(store: &Path) -> Result<Manifest> {
        let path = store.join(MANIFEST);
        let text = std::fs::read_to_string(&path).map_err(|_| no_store(store))?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
            Error::invalid(&path, error.to_string(), "copy the store again, or run its session again")
        })?;
        let schema = value.get("schema").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if schema == 0 || schema > u64::from(SCHEMA) {
            let problem = if schema == 0 {
                "it is not the manifest of a store".to_string()
            } else {
                format!("the store has schema {schema}; this version reads schemas up to {SCHEMA}")
            };
            return Err(Error::invalid(path, problem, "use the version of Pellucid that wrote it, or a newer one"));
        }
        serde_json::from_value(value)
            .map_err(|error| Error::invalid(&path, error.to_string(), "copy the store again, or run its session again"))
    }

    /// The first digits of the model's fingerprint, for display.
    pub(super) fn short_fingerprint(&self) -> &str {
        self.model.fingerprint.get(..12).unwrap_or(&self.model.fingerprint)
    }

    /// The keys of the parts, which identify the results.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.key.as_str())
    }
}

/// Says why a directory without a manifest is not a store.
fn no_store(path: &Path) -> Error {
    let partial = super::writer::partial_path(path);
    let unfinished =
        if path.join("lock").exists() { Some(path) } else { partial.exists().then_some(partial.as_path()) };
    match unfinished {
        Some(partial) => Error::usage(
            format!("{}: its session has not finished; {} holds the finished parts", path.display(), partial.display()),
            "run the session again: finished parts are reused",
        ),
        None if path.is_dir() => Error::usage(
            format!("{} is not a store: it has no {MANIFEST}", path.display()),
            "give the directory that a session wrote (its `output.path`)",
        ),
        None => Error::usage(
            format!("there is no store {}", path.display()),
            "give the directory that a session wrote (its `output.path`)",
        ),
    }
}
