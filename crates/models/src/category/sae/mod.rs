//! Detects sparse autoencoders, transcoders and steering vectors in all published layouts, at any
//! depth.
//!
//! A layout is recognized by its file names and, if these are ambiguous, by keys of its settings
//! files. Releases have one directory per site, width and sparsity, so the directory tree is
//! searched, with limits on depth and number, and without following link cycles.

mod describe;

pub use describe::{SaeDescription, describe, describe_gguf};
pub(crate) use describe::{base_model, describe_listing};

use serde::Serialize;

use super::config_keys::{ConfigKeys, Presence};
use crate::gguf::GgufFile;
use crate::listing::Listing;

/// Storage layout of sparse autoencoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Layout")]
pub enum SaeLayout {
    /// SAELens: `cfg.json` and `sae_weights.safetensors`.
    Saelens,
    /// Gemma Scope: `params.npz`.
    GemmaScope,
    /// Gemma Scope 2: `config.json` and `params.safetensors`.
    GemmaScope2,
    /// Llama Scope: `hyperparams.json` and `checkpoints/`, or `config.json` and
    /// `sae_weights.safetensors`.
    LlamaScope,
    /// dictionary_learning: `config.json` and `ae.pt`.
    DictionaryLearning,
    /// sparsify: `cfg.json` and `sae.safetensors`.
    Sparsify,
    /// circuit-tracer, per-layer transcoders: `layer_0.safetensors` and `config.yaml`.
    CircuitTracerPlt,
    /// circuit-tracer, cross-layer transcoders: `W_enc_0.safetensors`, `W_dec_0.safetensors`.
    CircuitTracerClt,
    /// Attention autoencoders: pairs of `NAME.pt` and `NAME_cfg.json`.
    HookZ,
    /// llama.cpp's control vectors: a GGUF file of steering directions.
    ControlVector,
    /// A release whose directories are named after sites, with unrecognized contents.
    Sites,
}

impl SaeLayout {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SaeLayout::Saelens => "saelens",
            SaeLayout::GemmaScope => "gemma_scope",
            SaeLayout::GemmaScope2 => "gemma_scope2",
            SaeLayout::LlamaScope => "llama_scope",
            SaeLayout::DictionaryLearning => "dictionary_learning",
            SaeLayout::Sparsify => "sparsify",
            SaeLayout::CircuitTracerPlt => "circuit_tracer_plt",
            SaeLayout::CircuitTracerClt => "circuit_tracer_clt",
            SaeLayout::HookZ => "hook_z",
            SaeLayout::ControlVector => "control_vector",
            SaeLayout::Sites => "sites",
        }
    }
}

/// Directory names of releases that are named after the site of the autoencoders.
const SITES: &[&str] = &[
    "attn_out",
    "attn_out_all",
    "crosscoder",
    "mlp_out",
    "mlp_out_all",
    "resid_post",
    "resid_post_all",
    "transcoder",
    "transcoder_all",
];

/// Whether this directory itself contains an autoencoder.
pub(crate) fn is_here(listing: &Listing, config: Option<&ConfigKeys>) -> bool {
    layout(listing, || None, config).is_some()
}

/// Whether a nested directory contains one.
pub(crate) fn is_inside(listing: &Listing) -> bool {
    /// Limit of directories opened.
    const MAX_OPENED: usize = 128;
    if listing.dirs().any(|dir| SITES.contains(&dir)) || has_control_vector(listing) {
        return true;
    }
    let mut found = false;
    walk(listing, MAX_OPENED, &mut |_, _| {
        found = true;
        false
    });
    found
}

/// The layout of this directory itself. `config` is its configuration if already read; else `read`
/// gets it.
fn layout(
    listing: &Listing,
    read: impl FnOnce() -> Option<ConfigKeys>,
    config: Option<&ConfigKeys>,
) -> Option<SaeLayout> {
    let has = |name: &str| listing.has(name);
    if has("sae_weights.safetensors") {
        return Some(if has("cfg.json") || !has("config.json") { SaeLayout::Saelens } else { SaeLayout::LlamaScope });
    }
    if has("params.npz") {
        return Some(SaeLayout::GemmaScope);
    }
    if has("ae.pt") {
        return Some(SaeLayout::DictionaryLearning);
    }
    if has("cfg.json") && has("sae.safetensors") {
        return Some(SaeLayout::Sparsify);
    }
    if has("hyperparams.json") && listing.has_dir("checkpoints") {
        return Some(SaeLayout::LlamaScope);
    }
    if has_numbered_file(listing, "W_enc_") {
        return Some(SaeLayout::CircuitTracerClt);
    }
    // With a config.json, such files belong to a model.
    if has_numbered_file(listing, "layer_") && !has("config.json") {
        return Some(SaeLayout::CircuitTracerPlt);
    }
    if listing.files_with_suffix("_cfg.json").any(|name| has(&format!("{}.pt", name.trim_end_matches("_cfg.json")))) {
        return Some(SaeLayout::HookZ);
    }
    if has("config.yaml") {
        let kind = describe::yaml(listing, "config.yaml", "model_kind");
        match kind.as_deref() {
            Some("transcoder_set") => return Some(SaeLayout::CircuitTracerPlt),
            Some("cross_layer_transcoder") => return Some(SaeLayout::CircuitTracerClt),
            _ => {}
        }
    }
    if !has("config.json") {
        return None;
    }
    let fresh = if config.is_none() { read() } else { None };
    let config = config.or(fresh.as_ref()).filter(|config| config.model_type().is_none())?;
    match config {
        config if config.trainer == Presence::Container => Some(SaeLayout::DictionaryLearning),
        config if config.hf_hook_point_in.any() => Some(SaeLayout::GemmaScope2),
        config if has("params.safetensors") && config.width.any() => Some(SaeLayout::GemmaScope2),
        config if config.hook_point_in.any() => Some(SaeLayout::LlamaScope),
        _ => None,
    }
}

/// Whether there is a file `<start><number>.safetensors`.
fn has_numbered_file(listing: &Listing, start: &str) -> bool {
    listing.files_with_suffix(".safetensors").any(|name| number_in(name, start).is_some())
}

fn number_in(name: &str, start: &str) -> Option<usize> {
    name.strip_prefix(start)?.strip_suffix(".safetensors")?.parse().ok()
}

/// Whether one of the GGUF files here is a control vector.
fn has_control_vector(listing: &Listing) -> bool {
    const MAX_OPENED: usize = 4;
    let is_vector = |name: &str| {
        GgufFile::open(listing.dir.join(name)).is_ok_and(|file| file.architecture().is_ok_and(|a| a == "controlvector"))
    };
    listing.files_with_suffix(".gguf").take(MAX_OPENED).any(is_vector)
}

/// Depth limit of the search: releases have up to four levels and may be nested in other folders.
const MAX_DEPTH: usize = 8;

/// Calls `visit` for every directory with an autoencoder until it returns `false`; opens at most
/// `max_dirs` directories. Returns whether the search was complete.
fn walk(listing: &Listing, max_dirs: usize, visit: &mut dyn FnMut(&Listing, SaeLayout) -> bool) -> bool {
    fn walk_from(
        listing: &Listing,
        depth: usize,
        left: &mut usize,
        visit: &mut dyn FnMut(&Listing, SaeLayout) -> bool,
    ) -> bool {
        if let Some(layout) = layout(listing, || config_keys(listing), None)
            && !visit(listing, layout)
        {
            return false;
        }
        if depth == MAX_DEPTH {
            return true;
        }
        for dir in listing.inner_dirs() {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            if let Ok(inner) = Listing::read(&dir)
                && !walk_from(&inner, depth + 1, left, visit)
            {
                return false;
            }
        }
        true
    }
    walk_from(listing, 0, &mut { max_dirs }, visit)
}

fn config_keys(listing: &Listing) -> Option<ConfigKeys> {
    let bytes = listing.settings("config.json").ok().flatten()?;
    ConfigKeys::read(&bytes, &listing.dir.join("config.json")).ok()
}
