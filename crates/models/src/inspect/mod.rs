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
//! | `category`, `config_keys`, `tensor_names` | the category: by files, by keys of `config.json`, by tensor names |
//! | [`registry`] | every model type and class of `transformers`, with its category |
//! | [`sae`] | sparse autoencoders in all published layouts |
//! | `directory`, `gguf`, `kinds` | the report of a directory, of a GGUF file, of adapters, SAEs and pipelines |
//! | `native` | whether the model would load and how much memory it needs, by the code that loads models |
//! | `weights`, `tokenizer`, `vocabulary_scan`, `shape`, `parts`, `model_card` | sections of the report |
//! | `report`, `card` | the report as data, and as text |

mod answers;
mod card;
mod category;
mod config_keys;
mod directory;
mod gguf;
mod kinds;
mod model_card;
mod native;
mod parts;
pub mod registry;
mod report;
pub mod sae;
mod shape;
mod target;
mod tensor_names;
mod tokenizer;
mod vocabulary_scan;
mod weights;

pub use answers::{
    ModelInfo, SupportCheck, detect_model_category, get_model_info, get_sae_base_model, is_asr_model,
    is_diffusers_model, is_model_supported, is_omni_model, is_sae_model, is_vision_encoder,
};
pub use kinds::Component;
pub use parts::{LoadMode, Modalities, ModelPart, PartRole, PartialLoad};
pub use report::{
    Category, Format, Memory, Problem, Quantization, Report, SCHEMA, Shards, Support, TokenizerReport, TokenizerState,
    schema,
};

use std::path::Path;

use crate::select_family::check_assumption;
use crate::{Error, Result, families, listing};

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
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    let mut report = Report::new(path, Format::Other);
    if metadata.is_dir() {
        report = directory::inspect(path, assume);
    } else if metadata.is_file() {
        file(path, metadata.len(), assume, &mut report);
    } else {
        report.refuse("this is neither a file nor a directory", "give a model's directory or a .gguf file");
    }
    Ok(report)
}

/// Describes a single file, by its first bytes and its extension.
fn file(path: &Path, bytes: u64, assume: Option<&str>, report: &mut Report) {
    report.file_bytes = bytes;
    let start = match listing::first_bytes(path, 24) {
        Ok(start) => start,
        Err(error) => return report.refuse(format!("the file cannot be read: {error}"), "check its permissions"),
    };
    let has_extension = |wanted: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted));
    if start.starts_with(listing::LFS_POINTER) {
        report.refuse("this is a Git LFS pointer, not the file itself", listing::FETCH_LFS);
    } else if start.starts_with(b"GGUF") || has_extension("gguf") {
        gguf::inspect(path, assume, report);
    } else if has_extension("safetensors") {
        report.format = Format::Safetensors;
        weights::count_file(path, report);
        let model_dir = path.parent().filter(|parent| parent.join("config.json").is_file());
        let remedy = match model_dir {
            Some(parent) => format!("give the directory that contains it: {}", parent.display()),
            None => "put it into a directory with its config.json, and give that directory".into(),
        };
        report.refuse("a weight file without config.json does not identify its model", remedy);
    } else {
        report.refuse("this file is not a model", "give a model's directory or a .gguf file");
    }
}
