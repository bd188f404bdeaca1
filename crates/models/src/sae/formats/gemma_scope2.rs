//! Gemma Scope 2: JumpReLU autoencoders, transcoders with and without an affine skip path,
//! cross-layer transcoders and crosscoders of Gemma 3.
//!
//! One autoencoder is `config.json` and `params.safetensors`: `w_enc [d_in, n]`, `w_dec [n,
//! d_out]`, `affine_skip_connection [d_in, d_out]`. A model of several layers has one file per
//! layer, `params_layer_0.safetensors` …: features of layer i read layer i, and `w_dec [n, layers,
//! d_out]` writes all of them. Its reconstruction of a layer is the sum over these files, of which
//! each contributes the bias of its own layer.

use pellucid_engine::sae::SaeKind;

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{BASE_MODEL_KEYS, Settings, number_after, path_parts, text_at, whole_path};
use super::{Format, Marks, Summary, has_numbered, json_or_null, number_in, numbered};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::GemmaScope2, name: "Gemma Scope 2", recognize, members, describe, read };

const WEIGHTS: &str = "params.safetensors";
const LAYER: &str = "params_layer_";
const END: &str = ".safetensors";

fn recognize(listing: &Listing, marks: Marks<'_>) -> std::result::Result<(), &'static str> {
    if has_numbered(listing, LAYER, END) {
        return Ok(());
    }
    // Some directories of the release have no config.json; their names say the same.
    let named = || listing.dir.file_name().is_some_and(|name| name.to_string_lossy().contains("_width_"));
    if !listing.has("config.json") {
        let known = listing.has(WEIGHTS) && named();
        return if known { Ok(()) } else { Err("there is no config.json with hf_hook_point_in") };
    }
    match marks() {
        Some(marks) if marks.model_type => Err("config.json is a model's"),
        Some(marks) if marks.hf_hook_point_in || (marks.width && listing.has(WEIGHTS)) => Ok(()),
        _ => Err("config.json has no hf_hook_point_in"),
    }
}

fn members(listing: &Listing) -> Vec<String> {
    numbered(listing, LAYER, END)
}

fn describe(listing: &Listing) -> Summary {
    let settings = json_or_null(listing, "config.json");
    let list = |pointer: &str| text_at(&settings, &[pointer]).into_iter().collect();
    Summary {
        count: members(listing).len().max(1),
        kind: text_at(&settings, &["/architecture", "/type"]),
        base_model: text_at(&settings, BASE_MODEL_KEYS),
        hooks: list("/hf_hook_point_in"),
        hooks_out: list("/hf_hook_point_out"),
    }
}

/// Hook points and type: of the settings, or derived from the directory's name.
struct Placement {
    hook_in: Option<String>,
    hook_out: Option<String>,
    transcoder: bool,
    crosscoder: bool,
}

impl Placement {
    fn read(settings: &Settings, path: &str) -> Result<Placement> {
        let has = |word: &str| path_parts(path).any(|part| part.starts_with(word));
        let declared = settings.text("type")?;
        let crosscoder = declared == Some("crosscoder") || declared.is_none() && has("crosscoder");
        let transcoder =
            matches!(declared, Some("transcoder" | "clt")) || declared.is_none() && (has("transcoder") || has("clt"));
        let layer = number_after(path, "layer_");
        let derived = |end: &str| layer.map(|layer| format!("model.layers.{layer}.{end}"));
        let named_in = || match () {
            _ if has("transcoder") => derived("pre_feedforward_layernorm.output"),
            _ if has("resid_post") => derived("output"),
            _ if has("attn_out") => derived("self_attn.o_proj.input"),
            _ if has("mlp_out") => derived("post_feedforward_layernorm.output"),
            _ => None,
        };
        let named_out = || derived("post_feedforward_layernorm.output").filter(|_| has("transcoder"));
        let hook_in = settings.text("hf_hook_point_in")?.map(str::to_owned).or_else(named_in);
        let hook_out = settings.text("hf_hook_point_out")?.map(str::to_owned).or_else(named_out);
        Ok(Placement { hook_in, hook_out: hook_out.filter(|_| transcoder || crosscoder), transcoder, crosscoder })
    }
}

fn read(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let settings = Settings::read(listing, "config.json")?;
    match settings.text("architecture")? {
        None | Some("jump_relu") => {}
        Some(other) => {
            return Err(Error::unsupported(
                format!("{}: the architecture `{other}` is not supported", settings.path.display()),
                "Gemma Scope 2 has jump_relu only",
            ));
        }
    }
    let path = whole_path(&listing.dir);
    let placement = Placement::read(&settings, &path)?;
    let base_model = settings.text("model_name")?.map(str::to_owned);
    let mut facts = Facts {
        declared_kind: Some("jump_relu".into()),
        role: placement.transcoder.then_some(SaeRole::Transcoder),
        declared_l0: settings.number("l0")?,
        prepend_bos: Some(true),
        context_size: Some(1024),
        ..Facts::default()
    };
    if base_model.as_deref().is_some_and(|name| name.ends_with("-it")) {
        facts.notes.push("trained without the first 4 positions of a conversation".into());
    }
    facts.base_model = base_model;
    match number_in(name, LAYER, END) {
        Some(index) => read_layer(listing, name, index, &path, &placement, facts),
        None => read_single(listing, &settings, &placement, facts),
    }
}

/// The encoder with threshold and skip path, common to all types, without decoders; and the size of
/// the decoder, `[n_features, d_out]`.
fn encoder(file: &WeightFile) -> Result<(Parts, usize, usize)> {
    let (n, d_out) = (file.len("b_enc")?, file.len("b_dec")?);
    let d_in = match file.shape("w_enc")? {
        // Transposed unless the features are last; `matrix` reports it.
        [d_in, features] if *features == n => *d_in,
        _ => d_out,
    };
    let encoder = file.matrix("w_enc", [("d_in", d_in), ("n_features", n)])?.transposed();
    let mut parts = Parts::with_decoders(encoder, file.vector("b_enc", ("n_features", n))?, Vec::new(), Vec::new());
    parts.kind = SaeKind::JumpRelu { threshold: file.vector("threshold", ("n_features", n))? };
    if file.has("affine_skip_connection") {
        parts.skip = Some(file.matrix("affine_skip_connection", [("d_in", d_in), ("d_out", d_out)])?.transposed());
    }
    Ok((parts, n, d_out))
}

fn read_single(listing: &Listing, settings: &Settings, placement: &Placement, mut facts: Facts) -> Result<LoadedSae> {
    let file = WeightFile::open(&listing.dir.join(WEIGHTS))?;
    let (mut parts, n, d_out) = encoder(&file)?;
    parts.decoders = vec![file.matrix("w_dec", [("n_features", n), ("d_out", d_out)])?];
    parts.decoder_biases = vec![file.vector("b_dec", ("d_out", d_out))?];
    file.finish()?;
    settings.check_size("width", n, "a number of features of")?;
    if settings.flag("affine_connection")?.is_some_and(|affine| affine != parts.skip.is_some()) {
        return Err(settings.wrong("affine_connection", "it does not agree with the tensor `affine_skip_connection`"));
    }
    let base = facts.base_model.clone();
    let site = |hook: &Option<String>| hook.as_deref().and_then(|hook| site_of(hook, base.as_deref()));
    facts.sites_in = site(&placement.hook_in).into_iter().collect();
    facts.sites_out = site(&placement.hook_out).into_iter().collect();
    facts.hooks_in = placement.hook_in.iter().cloned().collect();
    facts.hooks_out = placement.hook_out.iter().cloned().collect();
    parts.load(listing.dir.clone(), SaeLayout::GemmaScope2, facts, &[&file])
}

/// Reads the features of one layer of a model of several layers.
fn read_layer(
    listing: &Listing,
    name: &str,
    index: usize,
    path: &str,
    placement: &Placement,
    mut facts: Facts,
) -> Result<LoadedSae> {
    let file = WeightFile::open(&listing.dir.join(name))?;
    let (mut parts, n, d_out) = encoder(&file)?;
    let count = match file.shape("w_dec")? {
        [_, count, _] => *count,
        shape => {
            return Err(file.wrong("w_dec", format!("its shape is {shape:?}; expected [n_features, layers, d_out]")));
        }
    };
    if index >= count {
        return Err(file.wrong("w_dec", format!("it writes {count} layers, but the file is of layer number {index}")));
    }
    let mut decoders = file.slices("w_dec", [("n_features", n), ("layers", count), ("d_out", d_out)], 1)?;
    let layers = layers(placement, path, count);
    // Layers before its own have no weight in a cross-layer transcoder.
    let first = if placement.crosscoder { 0 } else { index };
    parts.decoders = decoders.split_off(first);
    parts.decoder_biases = vec![vec![0.0; d_out]; count - first];
    parts.decoder_biases[index - first] = file.vector("b_dec", ("d_out", d_out))?;
    if placement.crosscoder && parts.skip.is_some() {
        return Err(Error::unsupported(
            format!("{}: a crosscoder with a skip path is not supported", file.path.display()),
            "Gemma Scope 2 has skip paths in transcoders only",
        ));
    }
    file.finish()?;
    facts.role = Some(if placement.crosscoder { SaeRole::Crosscoder } else { SaeRole::CrossLayerTranscoder });
    facts.notes.push(format!(
        "features of 1 of {count} layers; the reconstruction of a layer is the sum over all files that write it"
    ));
    if let Some(layers) = layers {
        let base = facts.base_model.clone();
        let hook = |hook: &Option<String>, at: usize| hook.as_deref().map(|hook| in_layer(hook, layers[at]));
        let site = |hook: &Option<String>| hook.as_deref().and_then(|hook| site_of(hook, base.as_deref()));
        let hook_in = hook(&placement.hook_in, index);
        let hooks_out: Vec<Option<String>> = (first..count).map(|at| hook(&placement.hook_out, at)).collect();
        facts.sites_in = site(&hook_in).into_iter().collect();
        facts.sites_out = hooks_out.iter().filter_map(site).collect();
        facts.hooks_in = hook_in.into_iter().collect();
        facts.hooks_out = hooks_out.into_iter().flatten().collect();
    }
    parts.load(listing.dir.join(name), SaeLayout::GemmaScope2, facts, &[&file])
}

/// The layers of a model of several layers: `{5,9,12,15}` in the hook point, or in the name of the
/// directory (`layer_5_9_12_15_width_65k`); all for a cross-layer transcoder.
fn layers(placement: &Placement, path: &str, count: usize) -> Option<Vec<usize>> {
    if !placement.crosscoder {
        return Some((0..count).collect());
    }
    let parse = |text: &str, separator: char| -> Option<Vec<usize>> {
        text.split(separator).map(|layer| layer.trim().parse().ok()).collect()
    };
    let inside = placement.hook_in.as_deref().and_then(|hook| hook.split_once('{')?.1.split_once('}'));
    let named = || path_parts(path).rev().find_map(|part| part.strip_prefix("layer_")?.split_once("_width"));
    let layers = inside.and_then(|(list, _)| parse(list, ',')).or_else(|| parse(named()?.0, '_'));
    layers.filter(|layers| layers.len() == count)
}

/// Replaces the braces of a hook point of several layers by one layer.
fn in_layer(hook: &str, layer: usize) -> String {
    match hook.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?.1))) {
        Some((before, after)) => format!("{before}{layer}{after}"),
        None => hook.to_owned(),
    }
}
