//! Identifies a directory or file: its category, whether this build runs it, and what it needs.
//!
//! [`inspect`] accepts anything: a language model, an incomplete download, an adapter, a folder of
//! sparse autoencoders, a GGUF file. It reads file names, JSON files and tensor headers, never
//! tensor data, and executes nothing. Only a missing path is an error; every other problem is part
//! of the [`Report`]. The query functions ([`detect_model_category`], [`is_model_supported`], …)
//! return a single fact in microseconds.
//!
//! | module | contents |
//! |---|---|
//! | `answers`, `target` | the query functions, and the files that they read |
//! | [`registry`], [`sae`] | from `category`: the types and classes of `transformers`; layouts of sparse autoencoders |
//! | `opened` | the path opened by the code that loads models: family, strategy, warnings, attempts, or the error |
//! | `directory`, `file`, `gguf`, `kinds` | the report of a directory, of a file, of a GGUF file, of adapters, SAEs and pipelines |
//! | `native` | checks the weights as loading does, and estimates the memory |
//! | `weights`, `tokenizer`, `vocabulary_scan`, `shape`, `parts`, `model_card` | sections of the report |
//! | `report`, `card` | the report as data, and as text |

mod answers;
mod card;
mod directory;
mod file;
mod gguf;
mod kinds;
mod model_card;
mod native;
mod opened;
mod parts;
mod report;
mod shape;
mod target;
mod tokenizer;
mod vocabulary_scan;
mod weights;

pub use crate::category::{Category, registry, sae};
pub use answers::{
    ModelInfo, SupportCheck, detect_model_category, get_model_info, get_sae_base_model, inspect_quickly, is_asr_model,
    is_diffusers_model, is_model_supported, is_omni_model, is_sae_model, is_vision_encoder,
};
pub use kinds::Component;
pub use parts::{LoadMode, Modalities, ModelPart, PartRole, PartialLoad};
pub use report::{
    Format, Memory, Problem, Quantization, Report, SCHEMA, Shards, Support, TokenizerReport, TokenizerState, schema,
};

use std::path::Path;

use crate::listing::Listing;
use crate::select_family::check_assumption;
use crate::{Attempt, Error, LoadOptions, Result, families};
use opened::OpenedModel;

/// Identifies a directory or file and checks whether it will run, without reading tensor data.
///
/// ```
/// let report = pellucid_models::inspect(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref())?;
/// assert_eq!(report.model_type.as_deref(), Some("llama"));
/// assert!(report.runs());
/// # Ok::<(), pellucid_models::Error>(())
/// ```
///
/// # Errors
/// Only if the path does not exist; damaged, incomplete or unknown models are described in the
/// report.
pub fn inspect(path: &Path) -> Result<Report> {
    inspect_as(path, None)
}

/// Like [`inspect`], treating a model whose own type is not native as one of the family `assume`;
/// the report says whether the model fits it.
///
/// # Errors
/// As [`inspect`]; also if `assume` is not a native family.
pub fn inspect_as(path: &Path, assume: Option<&str>) -> Result<Report> {
    check_assumption(None, assume)?;
    families::register_environment()?;
    std::fs::metadata(path).map_err(Error::io(path))?;
    let mut report = Report::new(path, Format::Other);
    let opened = OpenedModel::open(path, assume);
    match Listing::read(path) {
        Ok(listing) => directory::describe(&listing, &opened, &mut report),
        Err(_) => file::describe(path, &opened, &mut report),
    }
    report.assume = opened.partial.suggestion;
    Ok(report)
}

/// Returns the outcome of each loading strategy for a path, in order, from configurations and
/// headers alone. [`Report::strategies`] has the same list, without the adapters of `options`.
pub fn strategies(path: &Path, options: &LoadOptions) -> Vec<Attempt> {
    match OpenedModel::open(path, options.assume.as_deref()).selected {
        Ok(selected) => native::check_source(&selected, &options.adapters).strategies.unwrap_or_default(),
        Err(Error::Load { attempts, .. }) => attempts,
        Err(_) => Vec::new(),
    }
}
