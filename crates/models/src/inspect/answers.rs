//! Quick answers to single questions about a directory or file: what is it, and does this build run it?
//!
//! [`inspect`](crate::inspect()) describes everything; these functions answer one question each, from one reading of the directory and the
//! few keys of `config.json` that decide. They never fail, never execute anything and never read a tokenizer.

use std::path::Path;

use serde::Serialize;

use super::category;
use super::peek::{Peek, Seen};
use super::report::{Category, Support};
use super::sae;
use super::subject::{Depth, Place, Subject};

/// What there is to know about a model at a glance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The name of its directory or file.
    pub name: String,
    /// Its parameters, counted in the headers of its weights; nothing where there are none.
    pub size: Option<u64>,
    /// Whether its weights are quantised.
    pub is_quantized: bool,
    /// Whether it has a part that speaks.
    pub has_talker: bool,
    /// The class that `config.json` names.
    pub architecture: Option<String>,
    /// The family that `config.json` names.
    pub model_type: Option<String>,
    /// Whether its family runs here.
    pub is_supported: bool,
    /// Whether it brings Python code, which is never executed.
    pub has_custom_files: bool,
    /// What keeps it from being known or run.
    pub error: Option<String>,
}

/// Whether a model runs here, and why not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupportCheck {
    /// Whether its family runs here. Whether this copy of it is whole, [`inspect`](crate::inspect()) tells.
    pub supported: bool,
    /// What this build can do with it.
    pub tier: Support,
    /// Whether it brings Python code, which is never executed.
    pub has_custom_files: bool,
    /// The class that `config.json` names.
    pub architecture: Option<String>,
    /// The family that `config.json` names.
    pub model_type: Option<String>,
    /// What kind of thing it is.
    pub category: Category,
    /// Why it is not supported.
    pub error: Option<String>,
}

/// Describes a model at a glance. It never fails: what is wrong is said in `error`.
///
/// ```
/// let info = pellucid_models::inspect::get_model_info(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref());
/// assert_eq!((info.model_type.as_deref(), info.is_supported, info.error), (Some("llama"), true, None));
/// assert!(info.size.is_some_and(|parameters| parameters > 100_000));
/// ```
pub fn get_model_info(path: &Path) -> ModelInfo {
    let subject = Subject::read(path, Depth::Whole);
    let check = subject.check();
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy()).into_owned();
    let peek = subject.peek.as_ref();
    ModelInfo {
        name,
        size: subject.parameters(),
        is_quantized: subject.is_quantized(),
        has_talker: peek.is_some_and(|peek| {
            let typed = peek.model_type().is_some_and(|name| name.contains("talker"));
            peek.talker_config == Seen::Part || typed
        }),
        architecture: check.architecture,
        model_type: check.model_type,
        is_supported: check.supported,
        has_custom_files: check.has_custom_files,
        error: check.error,
    }
}

/// Whether a model is an omni model: it gives more than one kind of output, has a part that thinks and one that speaks, or is called so by its
/// makers. Language models, and others that look or listen and then write, are none.
pub fn is_omni_model(path: &Path) -> bool {
    // The configuration alone decides, so nothing else is opened.
    let file = path.join("config.json");
    let read = || Peek::read(&read_settings(&file)?, &file).ok();
    read().is_some_and(|peek| category::is_omni(&peek))
}

/// Whether a model runs here, and why not.
///
/// ```
/// let check = pellucid_models::inspect::is_model_supported("no/such/directory".as_ref());
/// assert!(!check.supported && check.error.is_some());
/// ```
pub fn is_model_supported(path: &Path) -> SupportCheck {
    Subject::read(path, Depth::Whole).check()
}

/// What kind of thing is here. It needs no `config.json`: pipelines and autoencoders are told by their files, lone weights by their tensors.
pub fn detect_model_category(path: &Path) -> Category {
    Subject::read(path, Depth::Glance).category()
}

/// Whether these are sparse autoencoders or transcoders, in any layout and at any depth.
pub fn is_sae_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Sae
}

/// The model that autoencoders were trained on, where they say so.
pub fn get_sae_base_model(path: &Path) -> Option<String> {
    let subject = Subject::read(path, Depth::Glance);
    match &subject.place {
        Place::Directory(listing) if subject.category() == Category::Sae => sae::base_model(listing),
        Place::Gguf(file) if subject.category() == Category::Sae => {
            sae::describe_gguf(file).base_models.into_iter().next()
        }
        _ => None,
    }
}

/// Whether this is an image pipeline of the `diffusers` library, or a part of one.
pub fn is_diffusers_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Diffusers
}

/// Whether this is a model that looks at images and does not write.
pub fn is_vision_encoder(path: &Path) -> bool {
    detect_model_category(path) == Category::VisionEncoder
}

/// Whether this is a model that writes down speech.
pub fn is_asr_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Asr
}

fn read_settings(file: &Path) -> Option<Vec<u8>> {
    const LONGEST: u64 = 32 << 20;
    // Opening a pipe would wait forever.
    if !std::fs::metadata(file).ok()?.is_file() {
        return None;
    }
    crate::listing::first_bytes(file, LONGEST + 1).ok().filter(|bytes| bytes.len() as u64 <= LONGEST)
}
