//! The ways into a model that this suite times where there is more than one function to take: each named once, here.

use pellucid_kernels::DType;
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{LoadOptions, LoadedModel, Outcome, Result, Storage, load_tokenizer, strategies};
use std::path::Path;

/// The function by which models are opened.
pub const OPEN: &str = "LoadedModel::open";
/// The function by which tokenizers are loaded.
pub const TOKENIZER: &str = "load_tokenizer";
/// The function that tells by which strategy something would be loaded.
pub const STRATEGY: &str = "strategies";

/// Opens a model as it is stored, ready to run.
pub fn open(path: &Path) -> Result<LoadedModel> {
    LoadedModel::open(path, &LoadOptions::default(), &mut |_| {})
}

/// Opens a model with its matrices in f32.
pub fn open_f32(path: &Path) -> Result<LoadedModel> {
    let options = LoadOptions { storage: Storage::As(DType::F32), ..LoadOptions::default() };
    LoadedModel::open(path, &options, &mut |_| {})
}

/// The tokenizer of a path; of autoencoders that of their base model, where it lies beside them.
pub fn tokenizer(path: &Path) -> Result<Tokenizer> {
    load_tokenizer(path)
}

/// The token that fills up rows: the tokenizer's own, or the one that ends a text.
pub fn pad(tokenizer: &Tokenizer) -> Option<u32> {
    tokenizer.special().pad
}

/// The way by which a path would be loaded, from its headers; `assume` is the family that the caller names.
pub fn strategy(path: &Path, assume: Option<&str>) -> &'static str {
    let options = LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() };
    let attempts = strategies(path, &options);
    let taken = attempts.iter().find(|attempt| attempt.outcome == Outcome::Taken);
    taken.map_or("refused", |attempt| attempt.strategy.name())
}
