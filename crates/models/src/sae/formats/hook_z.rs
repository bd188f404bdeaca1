//! Attention autoencoders of GPT-2: pairs of `NAME.pt` and `NAME_cfg.json` with ReLU, trained on
//! `z` of all heads, concatenated.

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::Facts;
use super::super::parts::Parts;
use super::super::settings::{BASE_MODEL_KEYS, Settings, text_at};
use super::{Format, Marks, Summary, json_or_null};
use crate::Result;
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::HookZ, name: "attention autoencoders (hook_z)", recognize, members, describe, read };

const ENDING: &str = "_cfg.json";

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    let pair = |name: &str| listing.has(&format!("{}.pt", name.trim_end_matches(ENDING)));
    match listing.files_with_suffix(ENDING).any(pair) {
        true => Ok(()),
        false => Err("there is no pair of NAME.pt and NAME_cfg.json"),
    }
}

fn members(listing: &Listing) -> Vec<String> {
    let names = listing.files_with_suffix(ENDING).map(|name| format!("{}.pt", name.trim_end_matches(ENDING)));
    names.filter(|name| listing.has(name)).collect()
}

/// The base model: in the settings, or at the start of the file's name (`gpt2-small_L5_Hcat_z`).
fn base_model(settings: &serde_json::Value, file: &str) -> Option<String> {
    text_at(settings, BASE_MODEL_KEYS).or_else(|| file.split_once("_L").map(|(model, _)| model.to_owned()))
}

fn describe(listing: &Listing) -> Summary {
    let mut all = Summary { kind: Some("standard".into()), ..Summary::default() };
    for file in listing.files_with_suffix(ENDING) {
        let settings = json_or_null(listing, file);
        all.count += 1;
        all.hooks.extend(text_at(&settings, &["/act_name"]));
        all.base_model = all.base_model.or_else(|| base_model(&settings, file));
    }
    all
}

fn read(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let settings_file = format!("{}{ENDING}", name.trim_end_matches(".pt"));
    let settings = Settings::required(listing, &settings_file)?;
    let file = WeightFile::open(&listing.dir.join(name))?;
    let (d_in, n) = (settings.required_size("act_size")?, settings.required_size("dict_size")?);
    let encoder = file.matrix("W_enc", [("act_size", d_in), ("dict_size", n)])?.transposed();
    let decoder = file.matrix("W_dec", [("dict_size", n), ("act_size", d_in)])?;
    let encoder_bias = file.vector("b_enc", ("dict_size", n))?;
    let decoder_bias = file.vector("b_dec", ("act_size", d_in))?;
    file.finish()?;
    let parts = Parts::relu(encoder, encoder_bias, decoder, decoder_bias, true);
    let hook = settings.text("act_name")?.map(str::to_owned);
    let facts = Facts {
        declared_kind: Some("standard".into()),
        sites_in: hook.as_deref().and_then(|hook| site_of(hook, None)).into_iter().collect(),
        hooks_in: hook.into_iter().collect(),
        base_model: base_model(&json_or_null(listing, &settings_file), name),
        prepend_bos: Some(true),
        context_size: Some(128),
        notes: vec!["reads all heads of z, concatenated".into()],
        ..Facts::default()
    };
    parts.load(listing.dir.join(name), SaeLayout::HookZ, facts, &[&file])
}
