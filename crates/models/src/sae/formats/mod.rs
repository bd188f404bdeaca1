//! The table of formats. Detection (`inspect`, `pellucid sae`) and reading use the same row.
//!
//! To add a format, write a file with four functions and add its row: `recognize` decides from file
//! names, and from the keys of `config.json` where names are ambiguous; `members` lists the files
//! of a directory with several autoencoders; `describe` reads only settings, for reports on whole
//! releases; `read` loads one autoencoder.

mod circuit_tracer;
mod dictionary_learning;
mod gemma_scope;
mod gemma_scope2;
mod goodfire;
mod hook_z;
mod llama_scope;
mod qwen_scope;
mod saelens;
mod sparsify;
mod temporal;

use serde::Deserialize;
use serde_json::Value;

use super::LoadedSae;
use super::layout::SaeLayout;
use crate::Result;
use crate::listing::Listing;

pub(super) use goodfire::read as read_single_checkpoint;

/// A row of the table.
pub(crate) struct Format {
    pub layout: SaeLayout,
    /// Name in messages.
    pub name: &'static str,
    /// Whether a directory has this format; if not, why.
    pub recognize: fn(&Listing, Marks<'_>) -> std::result::Result<(), &'static str>,
    /// Files that are one autoencoder each; empty if the directory itself is one.
    pub members: fn(&Listing) -> Vec<String>,
    /// Summary of the directory from its settings.
    pub describe: fn(&Listing) -> Summary,
    /// Reads one autoencoder; the name is one of `members`, or empty.
    pub read: fn(&Listing, &str) -> Result<LoadedSae>,
}

/// The formats, in the order in which they are tried.
pub(crate) const FORMATS: &[Format] = &[
    saelens::FORMAT,
    gemma_scope::FORMAT,
    dictionary_learning::FORMAT,
    sparsify::FORMAT,
    llama_scope::FORMAT,
    circuit_tracer::CLT,
    circuit_tracer::PLT,
    hook_z::FORMAT,
    qwen_scope::FORMAT,
    gemma_scope2::FORMAT,
    goodfire::FORMAT,
    temporal::FORMAT,
];

/// The settings of one directory, for reports.
#[derive(Default)]
pub(crate) struct Summary {
    pub count: usize,
    pub kind: Option<String>,
    pub base_model: Option<String>,
    pub hooks: Vec<String>,
    pub hooks_out: Vec<String>,
}

/// Keys of `config.json` that tell formats apart.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConfigMarks {
    /// It is a model's configuration.
    pub model_type: bool,
    /// dictionary_learning: `trainer` is an object.
    pub trainer: bool,
    /// Gemma Scope 2.
    pub hf_hook_point_in: bool,
    /// Gemma Scope 2.
    pub width: bool,
    /// Llama Scope.
    pub hook_point_in: bool,
}

/// Reads the marks when a format needs them; `None` without a `config.json`.
pub(crate) type Marks<'a> = &'a dyn Fn() -> Option<ConfigMarks>;

impl ConfigMarks {
    /// Reads the marks of a directory's `config.json`.
    pub fn read(listing: &Listing) -> Option<ConfigMarks> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Keys {
            model_type: Value,
            trainer: Value,
            hf_hook_point_in: Value,
            width: Value,
            hook_point_in: Value,
        }
        let bytes = listing.settings("config.json").ok().flatten()?;
        let keys: Keys = serde_json::from_slice(&bytes).ok()?;
        let present = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        Some(ConfigMarks {
            model_type: keys.model_type.as_str().is_some_and(|name| !name.is_empty()),
            trainer: keys.trainer.is_object() || keys.trainer.is_array(),
            hf_hook_point_in: present(&keys.hf_hook_point_in),
            width: present(&keys.width),
            hook_point_in: present(&keys.hook_point_in),
        })
    }
}

/// The format of a directory itself.
pub(crate) fn of_directory(listing: &Listing) -> Option<&'static Format> {
    let read = std::cell::OnceCell::new();
    recognize(listing, &|| *read.get_or_init(|| ConfigMarks::read(listing)))
}

/// Like [`of_directory`], with the marks of its `config.json`.
pub(crate) fn recognize(listing: &Listing, marks: Marks<'_>) -> Option<&'static Format> {
    FORMATS.iter().find(|format| (format.recognize)(listing, marks).is_ok())
}

/// For formats with one autoencoder per directory.
fn no_members(_: &Listing) -> Vec<String> {
    Vec::new()
}

/// Files `<start><number><end>`, by number.
fn numbered(listing: &Listing, start: &str, end: &str) -> Vec<String> {
    let number = |name: &str| name.strip_prefix(start)?.strip_suffix(end)?.parse::<usize>().ok();
    let mut found: Vec<(usize, String)> =
        listing.files_with_suffix(end).filter_map(|name| Some((number(name)?, name.to_owned()))).collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

/// The number of a file `<start><number><end>`.
fn number_in(name: &str, start: &str, end: &str) -> Option<usize> {
    name.strip_prefix(start)?.strip_suffix(end)?.parse().ok()
}

/// Whether there is a file `<start><number><end>`.
fn has_numbered(listing: &Listing, start: &str, end: &str) -> bool {
    listing.files_with_suffix(end).any(|name| number_in(name, start, end).is_some())
}

/// The JSON of a settings file; null if it is absent or damaged. For reports only: `read` reports
/// damage.
fn json_or_null(listing: &Listing, file: &str) -> Value {
    listing.json(file).ok().flatten().unwrap_or_default()
}
