//! Fast queries for a single fact about a directory or file.
//!
//! [`inspect`](crate::inspect()) describes everything; each of these functions returns one fact,
//! from one directory listing and a few keys of `config.json`. They never fail, never execute
//! anything and never read a tokenizer.

use std::path::Path;

use serde::Serialize;

use super::report::{Report, Support};
use super::target::{ConfigDepth, Target};
use crate::category::{self, Category, ConfigKeys};
use crate::files::read_settings;
use crate::{Error, Result, families};

/// A summary of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// Name of its directory or file.
    pub name: String,
    /// Number of parameters, from the tensor headers; `None` without weights.
    pub size: Option<u64>,
    /// Whether the weights are quantized.
    pub is_quantized: bool,
    /// Whether it has a talker (speech output).
    pub has_talker: bool,
    /// The class in `config.json` (`architectures`).
    pub architecture: Option<String>,
    /// The `model_type` in `config.json`.
    pub model_type: Option<String>,
    /// Whether its family is supported.
    pub is_supported: bool,
    /// Whether it comes with Python code, which is never executed.
    pub has_custom_files: bool,
    /// Why it cannot be identified or run.
    pub error: Option<String>,
}

/// Whether a model is supported, and why not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SupportCheck {
    /// Whether its family is supported. [`inspect`](crate::inspect()) also checks that the files
    /// are complete.
    pub supported: bool,
    /// Level of support.
    pub tier: Support,
    /// Whether it comes with Python code, which is never executed.
    pub has_custom_files: bool,
    /// The class in `config.json` (`architectures`).
    pub architecture: Option<String>,
    /// The `model_type` in `config.json`.
    pub model_type: Option<String>,
    /// Category of the model.
    pub category: Category,
    /// Why it is not supported.
    pub error: Option<String>,
}

/// Identifies a directory or file by its file names, its `config.json` or its GGUF header, in
/// microseconds. The result is [`inspect`](crate::inspect())'s report without the facts that need
/// tensor headers or the tokenizer: the family may run even if this copy of it is incomplete.
///
/// ```
/// let report = pellucid_models::inspect::inspect_quickly(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref())?;
/// assert_eq!((report.model_type.as_deref(), report.runs()), (Some("llama"), true));
/// # Ok::<(), pellucid_models::Error>(())
/// ```
///
/// # Errors
/// Only if the path does not exist.
pub fn inspect_quickly(path: &Path) -> Result<Report> {
    std::fs::metadata(path).map_err(Error::io(path))?;
    families::register_environment()?;
    Ok(Target::read(path, ConfigDepth::Full).report(path))
}

/// Summarizes a model. Never fails: problems are reported in `error`.
///
/// ```
/// let info = pellucid_models::inspect::get_model_info(concat!(env!("CARGO_MANIFEST_DIR"), "/builtin").as_ref());
/// assert_eq!((info.model_type.as_deref(), info.is_supported, info.error), (Some("llama"), true, None));
/// assert!(info.size.is_some_and(|parameters| parameters > 100_000));
/// ```
pub fn get_model_info(path: &Path) -> ModelInfo {
    let target = Target::read(path, ConfigDepth::Full);
    let report = target.report(path);
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy()).into_owned();
    ModelInfo {
        name,
        size: target.parameters(),
        is_quantized: target.is_quantized(),
        has_talker: report.modalities.talker,
        architecture: report.architecture,
        model_type: report.model_type,
        is_supported: report.support == Support::Native,
        has_custom_files: target.has_custom_files(),
        error: report.reason,
    }
}

/// Whether a model is an omni model: it has several output modalities, or a thinker and a talker,
/// or is named so. A multimodal model that outputs only text is not.
pub fn is_omni_model(path: &Path) -> bool {
    // Only config.json is needed.
    let file = path.join("config.json");
    let read = || ConfigKeys::read(&read_settings(&file).ok()?, &file).ok();
    read().is_some_and(|keys| category::is_omni(&keys))
}

/// Whether a model is supported, and why not.
///
/// ```
/// let check = pellucid_models::inspect::is_model_supported("no/such/directory".as_ref());
/// assert!(!check.supported && check.error.is_some());
/// ```
pub fn is_model_supported(path: &Path) -> SupportCheck {
    Target::read(path, ConfigDepth::Full).check(path)
}

/// Returns the category. `config.json` is optional: pipelines and autoencoders are recognized by
/// their files, bare weights by their tensor names.
pub fn detect_model_category(path: &Path) -> Category {
    Target::read(path, ConfigDepth::KeysOnly).category()
}

/// Whether the path contains sparse autoencoders or transcoders, in any layout and at any depth.
pub fn is_sae_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Sae
}

/// The model that the autoencoders were trained on, if their settings name it.
pub fn get_sae_base_model(path: &Path) -> Option<String> {
    let target = Target::read(path, ConfigDepth::KeysOnly);
    target.base_model(target.category())
}

/// Whether the path is an image pipeline of the `diffusers` library, or a part of one.
pub fn is_diffusers_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Diffusers
}

/// Whether the path is a vision encoder (a model that reads images and outputs no text).
pub fn is_vision_encoder(path: &Path) -> bool {
    detect_model_category(path) == Category::VisionEncoder
}

/// Whether the path is a speech-recognition model.
pub fn is_asr_model(path: &Path) -> bool {
    detect_model_category(path) == Category::Asr
}
