//! What is this directory or file, and can it run?
//!
//! [`inspect`] answers for whatever a person has: a language model, half a download, an adapter, a folder of sparse
//! autoencoders, a GGUF file. It reads names, JSON files and the headers of tensors, never their data, executes nothing,
//! and only a path that is not there is an error; everything else is said in the [`Report`]. Where one fact is enough, the functions
//! beside it ([`detect_model_category`], [`is_model_supported`], …) answer in microseconds from the same files.
//!
//! | module | its part |
//! |---|---|
//! | `answers`, `subject` | questions with one answer, and the files that they are asked about |
//! | `category`, `peek`, `tensor_names` | what kind of thing it is: by files, by the deciding keys of `config.json`, by names of tensors |
//! | [`registry`] | every model type and class of `transformers`, with its category |
//! | [`sae`] | autoencoders in all their layouts |
//! | `directory`, `gguf`, `kinds` | the report of a directory, of a GGUF file, of things that are no models |
//! | `native` | whether it would load and what it would need, asked of the functions that load models |
//! | `weights`, `tokenizer`, `vocabulary`, `shape`, `parts`, `model_card` | the parts of a report |
//! | `report`, `card` | the report as data, and for people |

mod answers;
mod card;
mod category;
mod directory;
mod gguf;
mod kinds;
mod model_card;
mod native;
mod parts;
mod peek;
pub mod registry;
mod report;
pub mod sae;
mod shape;
mod subject;
mod tensor_names;
mod tokenizer;
mod vocabulary;
mod weights;

pub use answers::{
    ModelInfo, SupportCheck, detect_model_category, get_model_info, get_sae_base_model, is_asr_model,
    is_diffusers_model, is_model_supported, is_omni_model, is_sae_model, is_vision_encoder,
};
pub use kinds::Component;
pub use parts::{Load, LoadMode, Modalities, Part, Role};
pub use report::{
    Category, Format, Memory, Problem, Quantisation, Report, SCHEMA, Shards, Support, TokenizerReport, TokenizerState,
    schema,
};

use std::path::Path;

use crate::select_family::check_assumption;
use crate::{Error, Result, families, listing};

/// Tells what a directory or file is and whether it will run, without reading any tensor's data.
///
/// ```
/// let report = pellucid_models::inspect(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref())?;
/// assert_eq!(report.model_type.as_deref(), Some("llama"));
/// assert!(report.runs());
/// # Ok::<(), pellucid_models::Error>(())
/// ```
///
/// # Errors
/// Only if there is nothing at the path; what is damaged, incomplete or unknown is described.
pub fn inspect(path: &Path) -> Result<Report> {
    inspect_as(path, None)
}

/// [`inspect`] under the assumption that a model whose own type is not native is one of this family: the report says whether the
/// model fits it.
///
/// # Errors
/// Also if there is no such native family.
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

/// A single file: by how it begins, whatever it is called.
fn file(path: &Path, bytes: u64, assume: Option<&str>, report: &mut Report) {
    report.file_bytes = bytes;
    let start = match listing::first_bytes(path, 24) {
        Ok(start) => start,
        Err(error) => return report.refuse(format!("the file cannot be read: {error}"), "check its permissions"),
    };
    let named = |end: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(end));
    if start.starts_with(listing::LFS_POINTER) {
        report.refuse("this is a Git LFS pointer, not the file itself", listing::FETCH_LFS);
    } else if start.starts_with(b"GGUF") || named("gguf") {
        gguf::inspect(path, assume, report);
    } else if named("safetensors") {
        report.format = Format::Safetensors;
        weights::count_file(path, report);
        let beside = path.parent().filter(|parent| parent.join("config.json").is_file());
        let remedy = match beside {
            Some(parent) => format!("give the directory that holds it: {}", parent.display()),
            None => "put it into a directory with its config.json, and give that directory".into(),
        };
        report.refuse("a file of weights alone does not say which model they are of", remedy);
    } else {
        report.refuse("this file is no model", "give a model's directory or a .gguf file");
    }
}
