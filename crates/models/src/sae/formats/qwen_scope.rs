//! Qwen-Scope: `layer0.sae.pt` …, TopK on the residual stream. `W_enc [n, d]`, `W_dec [d, n]`.
//!
//! k is in `config.json`, or in the repository's name (`SAE-Res-Qwen3-1.7B-Base-W32K-L0_50`). The
//! decoder bias is not subtracted from the input.

use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Point, Site};

use super::super::file::WeightFile;
use super::super::info::Facts;
use super::super::parts::Parts;
use super::super::settings::{Settings, digits, number_after, path_parts, text_at, whole_path};
use super::{Format, Marks, Summary, has_numbered, json_or_null, number_in, numbered};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::QwenScope, name: "Qwen-Scope", recognize, members, describe, read };

const START: &str = "layer";
const END: &str = ".sae.pt";

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    if has_numbered(listing, START, END) { Ok(()) } else { Err("there is no layer0.sae.pt") }
}

fn members(listing: &Listing) -> Vec<String> {
    numbered(listing, START, END)
}

/// Base model in the repository's name.
fn base_in_path(path: &str) -> Option<String> {
    let named = path_parts(path).rev().find_map(|part| part.split_once("SAE-Res-"))?.1;
    Some(format!("Qwen/{}", named.split_once("-W")?.0))
}

fn base_model(listing: &Listing) -> Option<String> {
    text_at(&json_or_null(listing, "config.json"), &["/base_model", "/model_name"])
        .or_else(|| base_in_path(&whole_path(&listing.dir)))
}

fn describe(listing: &Listing) -> Summary {
    let layers: Vec<usize> = members(listing).iter().filter_map(|name| number_in(name, START, END)).collect();
    Summary {
        count: layers.len(),
        kind: Some("topk".into()),
        base_model: base_model(listing),
        hooks: layers.iter().map(|layer| format!("blocks.{layer}.hook_resid_post")).collect(),
        hooks_out: Vec::new(),
    }
}

fn read(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let path = whole_path(&listing.dir);
    let settings = Settings::read(listing, "config.json")?;
    let file = WeightFile::open(&listing.dir.join(name))?;
    let (n, d) = (file.len("b_enc")?, file.len("b_dec")?);
    let encoder = file.matrix("W_enc", [("n_features", n), ("d_in", d)])?;
    let decoder = file.matrix("W_dec", [("d_in", d), ("n_features", n)])?.transposed();
    let (encoder_bias, decoder_bias) = (file.vector("b_enc", ("n_features", n))?, file.vector("b_dec", ("d_in", d))?);
    file.finish()?;
    settings.check_size("d_model", d, "the width")?;
    settings.check_size("d_sae", n, "a number of features of")?;
    let width = path_parts(&path).rev().find_map(|part| digits(part.split_once("SAE-Res-")?.1.split_once("-W")?.1));
    if let Some(width) = width.filter(|width| width * 1024 != n) {
        return Err(Error::invalid(
            &file.path,
            format!("the repository's name declares {width}K features, the weights have {n}"),
            "keep the files of each repository in their own directory",
        ));
    }
    let Some(k) = settings.size("k")?.or_else(|| number_after(&path, "-L0_")) else {
        return Err(Error::invalid(
            &file.path,
            "the number of active features k is unknown: neither config.json nor the directory's name has it",
            "download config.json too, or name the directory as the repository (SAE-Res-MODEL-W32K-L0_50)",
        ));
    };
    let mut parts = Parts::relu(encoder, encoder_bias, decoder, decoder_bias, false);
    parts.kind = SaeKind::TopK { k, by_decoder_norm: None };
    let layer = number_in(name, START, END);
    let facts = Facts {
        declared_kind: Some("topk".into()),
        hooks_in: layer.map(|layer| format!("blocks.{layer}.hook_resid_post")).into_iter().collect(),
        sites_in: layer.map(|layer| Site::layer(layer, Point::ResidPost)).into_iter().collect(),
        base_model: base_model(listing),
        ..Facts::default()
    };
    parts.load(listing.dir.join(name), SaeLayout::QwenScope, facts, &[&file])
}
