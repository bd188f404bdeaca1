//! Sparse autoencoders, transcoders and steering vectors in every layout that people publish them in, at any depth.
//!
//! A layout is told by the names of its files, and where these are common ones by keys of the settings beside them. Releases hold one
//! directory for each site, width and sparsity, so directories are walked: only so deep and so many, and no circle of links is entered.

mod describe;

pub use describe::{Description, describe, describe_gguf};
pub(crate) use describe::{base_model, describe_listing};

use serde::Serialize;

use super::peek::{Peek, Seen};
use crate::gguf::GgufFile;
use crate::listing::Listing;

/// The ways in which autoencoders are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// SAELens: `cfg.json` and `sae_weights.safetensors`.
    Saelens,
    /// Gemma Scope: `params.npz`.
    GemmaScope,
    /// Gemma Scope 2: `config.json` and `params.safetensors`.
    GemmaScope2,
    /// Llama Scope: `hyperparams.json` and `checkpoints/`, or `config.json` and `sae_weights.safetensors`.
    LlamaScope,
    /// dictionary_learning: `config.json` and `ae.pt`.
    DictionaryLearning,
    /// sparsify: `cfg.json` and `sae.safetensors`.
    Sparsify,
    /// circuit-tracer, one transcoder a layer: `layer_0.safetensors` and `config.yaml`.
    CircuitTracerPlt,
    /// circuit-tracer, transcoders across layers: `W_enc_0.safetensors`, `W_dec_0.safetensors`.
    CircuitTracerClt,
    /// Attention autoencoders in pairs of `NAME.pt` and `NAME_cfg.json`.
    HookZ,
    /// llama.cpp's control vectors: a GGUF file of directions.
    ControlVector,
    /// A release whose directories are named for sites, with nothing known inside.
    Sites,
}

impl Layout {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Saelens => "saelens",
            Layout::GemmaScope => "gemma_scope",
            Layout::GemmaScope2 => "gemma_scope2",
            Layout::LlamaScope => "llama_scope",
            Layout::DictionaryLearning => "dictionary_learning",
            Layout::Sparsify => "sparsify",
            Layout::CircuitTracerPlt => "circuit_tracer_plt",
            Layout::CircuitTracerClt => "circuit_tracer_clt",
            Layout::HookZ => "hook_z",
            Layout::ControlVector => "control_vector",
            Layout::Sites => "sites",
        }
    }
}

/// The directories of a release that are named for what its autoencoders read.
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

/// Whether this very directory holds an autoencoder.
pub(crate) fn is_here(listing: &Listing, config: Option<&Peek>) -> bool {
    layout(listing, || None, config).is_some()
}

/// Whether a directory inside holds one.
pub(crate) fn is_inside(listing: &Listing) -> bool {
    /// Looking for one, this many directories are opened.
    const MOST: usize = 128;
    if listing.dirs().any(|dir| SITES.contains(&dir)) || holds_vectors(listing) {
        return true;
    }
    let mut found = false;
    walk(listing, MOST, &mut |_, _| {
        found = true;
        false
    });
    found
}

/// The layout of what this very directory holds. `config` is its configuration where it is known already, `read` gets it otherwise.
fn layout(listing: &Listing, read: impl FnOnce() -> Option<Peek>, config: Option<&Peek>) -> Option<Layout> {
    let has = |name: &str| listing.has(name);
    if has("sae_weights.safetensors") {
        return Some(if has("cfg.json") || !has("config.json") { Layout::Saelens } else { Layout::LlamaScope });
    }
    if has("params.npz") {
        return Some(Layout::GemmaScope);
    }
    if has("ae.pt") {
        return Some(Layout::DictionaryLearning);
    }
    if has("cfg.json") && has("sae.safetensors") {
        return Some(Layout::Sparsify);
    }
    if has("hyperparams.json") && listing.has_dir("checkpoints") {
        return Some(Layout::LlamaScope);
    }
    if numbered(listing, "W_enc_") {
        return Some(Layout::CircuitTracerClt);
    }
    // Shards of models are numbered otherwise, but a model's own configuration would say what it is.
    if numbered(listing, "layer_") && !has("config.json") {
        return Some(Layout::CircuitTracerPlt);
    }
    if listing.ending("_cfg.json").any(|name| has(&format!("{}.pt", name.trim_end_matches("_cfg.json")))) {
        return Some(Layout::HookZ);
    }
    if has("config.yaml") {
        let kind = describe::yaml(listing, "config.yaml", "model_kind");
        match kind.as_deref() {
            Some("transcoder_set") => return Some(Layout::CircuitTracerPlt),
            Some("cross_layer_transcoder") => return Some(Layout::CircuitTracerClt),
            _ => {}
        }
    }
    if !has("config.json") {
        return None;
    }
    let own = if config.is_none() { read() } else { None };
    let config = config.or(own.as_ref()).filter(|config| config.model_type().is_none())?;
    match config {
        config if config.trainer == Seen::Part => Some(Layout::DictionaryLearning),
        config if config.hf_hook_point_in.any() => Some(Layout::GemmaScope2),
        config if has("params.safetensors") && config.width.any() => Some(Layout::GemmaScope2),
        config if config.hook_point_in.any() => Some(Layout::LlamaScope),
        _ => None,
    }
}

/// Whether there is a file `<start><number>.safetensors`.
fn numbered(listing: &Listing, start: &str) -> bool {
    listing.ending(".safetensors").any(|name| number_in(name, start).is_some())
}

fn number_in(name: &str, start: &str) -> Option<usize> {
    name.strip_prefix(start)?.strip_suffix(".safetensors")?.parse().ok()
}

/// Whether one of the GGUF files here is a control vector.
fn holds_vectors(listing: &Listing) -> bool {
    const MOST: usize = 4;
    let is_vector = |name: &str| {
        GgufFile::open(listing.dir.join(name)).is_ok_and(|file| file.architecture().is_ok_and(|a| a == "controlvector"))
    };
    listing.ending(".gguf").take(MOST).any(is_vector)
}

/// How deep autoencoders may lie: releases have up to four levels, and people keep releases in folders.
const DEPTH: usize = 8;

/// Shows every directory with an autoencoder to `visit`, which says whether to go on; `most` directories are opened. Tells whether those were all.
fn walk(listing: &Listing, most: usize, visit: &mut dyn FnMut(&Listing, Layout) -> bool) -> bool {
    fn inside(
        listing: &Listing,
        depth: usize,
        left: &mut usize,
        visit: &mut dyn FnMut(&Listing, Layout) -> bool,
    ) -> bool {
        if let Some(layout) = layout(listing, || peek(listing), None)
            && !visit(listing, layout)
        {
            return false;
        }
        if depth == DEPTH {
            return true;
        }
        for dir in listing.inner_dirs() {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            if let Ok(inner) = Listing::read(&dir)
                && !inside(&inner, depth + 1, left, visit)
            {
                return false;
            }
        }
        true
    }
    inside(listing, 0, &mut { most }, visit)
}

fn peek(listing: &Listing) -> Option<Peek> {
    let bytes = listing.settings("config.json").ok().flatten()?;
    Peek::read(&bytes, &listing.dir.join("config.json")).ok()
}
