//! sparsify: `cfg.json` and `sae.safetensors` in a directory named after its hook point
//! (`layers.5.mlp`); the base model is in `config.json` of the directory above.
//!
//! `encoder.weight [n, d_in]`, `W_dec [n, d_out]`, `W_skip [d_out, d_in]`. TopK, or the maximum of
//! k groups. The decoder bias is subtracted from the input unless `transcode` is set.

use pellucid_engine::sae::SaeKind;

use super::super::file::WeightFile;
use super::super::hooks::{ModuleSide, module};
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{Settings, text_at};
use super::{Format, Marks, Summary, json_or_null, no_members};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::Sparsify, name: "sparsify", recognize, members: no_members, describe, read };

/// Settings of all versions. Others could change the results.
const KNOWN: &[&str] = &[
    "activation",
    "d_in",
    "embed_skip",
    "expansion_factor",
    "gram_lookup",
    "gram_table_hash",
    "k",
    "lookup_max_order",
    "multi_topk",
    "normalize_decoder",
    "num_latents",
    "signed",
    "skip_connection",
    "transcode",
];

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    match listing.has("cfg.json") && listing.has("sae.safetensors") {
        true => Ok(()),
        false => Err("there is no pair of cfg.json and sae.safetensors"),
    }
}

/// The hook point: the directory's name.
fn hook(listing: &Listing) -> Option<String> {
    let dir = listing.dir.canonicalize().unwrap_or_else(|_| listing.dir.clone());
    dir.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// The training settings, in the directory above those of the hook points.
fn training(listing: &Listing) -> serde_json::Value {
    let dir = listing.dir.canonicalize().unwrap_or_else(|_| listing.dir.clone());
    let above = dir.parent().and_then(|above| Listing::read(above).ok());
    above.map(|above| json_or_null(&above, "config.json")).unwrap_or_default()
}

fn describe(listing: &Listing) -> Summary {
    let settings = json_or_null(listing, "cfg.json");
    let transcodes = settings.get("transcode").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let hooks: Vec<String> = hook(listing).into_iter().collect();
    Summary {
        count: 1,
        kind: text_at(&settings, &["/activation"]).or_else(|| Some("topk".into())),
        base_model: text_at(&training(listing), &["/model"]),
        hooks_out: if transcodes { hooks.clone() } else { Vec::new() },
        hooks,
    }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    let settings = Settings::required(listing, "cfg.json")?;
    settings.check_keys(KNOWN)?;
    for (key, why) in [
        ("embed_skip", "its output depends on the embeddings of the model"),
        ("gram_lookup", "its input depends on a table of n-grams"),
        ("signed", "it selects by magnitude and keeps signs, as an old version of sparsify did"),
    ] {
        if settings.flag(key)?.unwrap_or(false) {
            return Err(Error::unsupported(
                format!("{}: `{key}` is set: {why}", settings.path.display()),
                "use an autoencoder without it",
            ));
        }
    }
    let file = WeightFile::open(&listing.dir.join("sae.safetensors"))?;
    let d_in = settings.required_size("d_in")?;
    let n = match settings.size("num_latents")? {
        Some(n) if n > 0 => n,
        _ => d_in * settings.required_size("expansion_factor")?,
    };
    let k = settings.required_size("k")?;
    let transcode = settings.flag("transcode")?.unwrap_or(false);
    let encoder = file.matrix("encoder.weight", [("num_latents", n), ("d_in", d_in)])?;
    let decoder = file.matrix("W_dec", [("num_latents", n), ("d_in", d_in)])?;
    let (encoder_bias, decoder_bias) =
        (file.vector("encoder.bias", ("num_latents", n))?, file.vector("b_dec", ("d_in", d_in))?);
    let mut parts = Parts::relu(encoder, encoder_bias, decoder, decoder_bias, !transcode);
    let activation = settings.text("activation")?.unwrap_or("topk");
    parts.kind = match activation {
        "topk" => SaeKind::TopK { k, by_decoder_norm: None },
        "groupmax" => SaeKind::GroupMax { k },
        other => return Err(settings.wrong("activation", format!("expected topk or groupmax, not {other:?}"))),
    };
    let skip = settings.flag("skip_connection")?.unwrap_or(false);
    if skip {
        parts.skip = Some(file.matrix("W_skip", [("d_out", d_in), ("d_in", d_in)])?);
    }
    file.finish()?;

    let training = training(listing);
    let base_model = text_at(&training, &["/model"]);
    let hook = hook(listing);
    // Versions before the setting `transcode` saved transcoders with a skip path without it.
    let transcoder = transcode || skip;
    let site = |side: ModuleSide| hook.as_deref().and_then(|hook| module(hook, side, base_model.as_deref()));
    let mut facts = Facts {
        declared_kind: Some(activation.to_owned()),
        role: transcoder.then_some(SaeRole::Transcoder),
        sites_in: site(if transcoder { ModuleSide::Input } else { ModuleSide::Output }).into_iter().collect(),
        sites_out: site(ModuleSide::Output).into_iter().collect(),
        context_size: training.get("ctx_len").and_then(serde_json::Value::as_u64).map(|size| size as usize),
        ..Facts::default()
    };
    if skip && !transcode {
        facts.notes.push(
            "a skip path without `transcode`: read as a transcoder that subtracts its decoder bias, as sparsify does"
                .into(),
        );
    }
    if facts.sites_in.is_empty() {
        facts.notes.push("the directory is not named after a hook point (layers.5.mlp), so its site is unknown".into());
    }
    facts.hooks_out = if transcoder { hook.iter().cloned().collect() } else { Vec::new() };
    facts.hooks_in = hook.into_iter().collect();
    facts.base_model = base_model;
    parts.load(listing.dir.clone(), SaeLayout::Sparsify, facts, &[&file])
}
