//! The ways into a model that this suite times where there is more than one function to take: each named once, here.

use pellucid_kernels::DType;
use pellucid_models::inspect::{Category, Format};
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{Error, LoadOptions, LoadedModel, Result, Storage, identify, inspect, tokenizer_of};
use std::path::Path;

/// The function by which models are opened.
pub const OPEN: &str = "LoadedModel::open";
/// The function by which tokenizers are loaded.
pub const TOKENIZER: &str = "tokenizer_of";
/// The function that tells by which strategy something would be loaded.
pub const STRATEGY: &str = "inspect";

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
    if let Some(own) = tokenizer_of(Some(path))? {
        return Ok(own);
    }
    let base = identify::get_sae_base_model(path);
    let beside = base.as_ref().and_then(|base| Some(path.parent()?.join(base))).filter(|beside| beside.is_dir());
    let found = beside.map(|beside| tokenizer_of(Some(&beside))).transpose()?.flatten();
    found.ok_or_else(|| {
        let of = base.map_or_else(String::new, |base| format!(", nor one of its base model `{base}` beside it"));
        Error::usage(
            format!("{}: there is no tokenizer here{of}", path.display()),
            "put the model's tokenizer.json beside its weights",
        )
    })
}

/// The token that fills up rows: the tokenizer's own, or the one that ends a text.
pub fn pad(tokenizer: &Tokenizer) -> Option<u32> {
    let special = tokenizer.special();
    special.pad.or(special.eos.first().copied())
}

/// The way by which a path would be loaded, from its headers.
pub fn strategy(path: &Path) -> &'static str {
    match inspect(path) {
        Ok(report) if !report.runs() => "refused",
        Ok(report) if report.registered_as.is_some() => "mapped custom type",
        Ok(report) if report.category == Category::Adapter => "adapter merge",
        Ok(report) if report.format == Format::Gguf => "GGUF",
        Ok(_) => "native family",
        Err(_) => "refused",
    }
}
