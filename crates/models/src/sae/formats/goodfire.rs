//! Single checkpoints `NAME-SAE-l19.pt` (Goodfire, DeepSeek-R1): two linear layers with biases and
//! a ReLU, no settings file.
//!
//! The decoder bias is not subtracted from the input. Base model and layer are in the file's name.

use pellucid_engine::{Point, Site};

use super::super::file::WeightFile;
use super::super::info::Facts;
use super::super::parts::Parts;
use super::super::settings::digits;
use super::{Format, Marks, Summary};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::Goodfire, name: "single checkpoint (Goodfire)", recognize, members, describe, read };

/// Model and layer of `Llama-3.1-8B-Instruct-SAE-l19.pth`.
fn parse_name(name: &str) -> Option<(String, usize)> {
    let (model, rest) = name.split_once("-SAE-l")?;
    let ending = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    [".pt", ".pth", ".safetensors"].contains(&ending).then_some(())?;
    let owner = match model {
        model if model.starts_with("Llama-") => "meta-llama/",
        model if model.starts_with("DeepSeek-") => "deepseek-ai/",
        _ => "",
    };
    Some((format!("{owner}{model}"), digits(rest)?))
}

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    match listing.files().any(|name| parse_name(name).is_some()) {
        true => Ok(()),
        false => Err("there is no file named like MODEL-SAE-l19.pt"),
    }
}

fn members(listing: &Listing) -> Vec<String> {
    listing.files().filter(|name| parse_name(name).is_some()).map(str::to_owned).collect()
}

fn describe(listing: &Listing) -> Summary {
    let named: Vec<(String, usize)> = listing.files().filter_map(parse_name).collect();
    Summary {
        count: named.len(),
        kind: Some("standard".into()),
        base_model: named.first().map(|(model, _)| model.clone()),
        hooks: named.iter().map(|(_, layer)| format!("blocks.{layer}.hook_resid_post")).collect(),
        hooks_out: Vec::new(),
    }
}

/// Reads a checkpoint; also one that was given by itself, under any name.
pub(in crate::sae) fn read(listing: &Listing, name: &str) -> Result<LoadedSae> {
    let path = listing.dir.join(name);
    let file = WeightFile::open(&path)?;
    let prefixes = [("encoder_linear", "decoder_linear"), ("encoder", "decoder")];
    let Some((encoder, decoder)) = prefixes.into_iter().find(|(encoder, _)| file.has(&format!("{encoder}.weight")))
    else {
        return Err(Error::usage(
            format!(
                "{} is not an autoencoder in a known format: its directory has no settings, and the file has neither \
                 `encoder_linear.weight` nor `encoder.weight`",
                path.display()
            ),
            "give the directory that holds the weights and their settings file",
        ));
    };
    let tensor = |layer: &str, end: &str| format!("{layer}.{end}");
    let (b_enc, b_dec) = (tensor(encoder, "bias"), tensor(decoder, "bias"));
    let (n, d) = (file.len(&b_enc)?, file.len(&b_dec)?);
    let parts = Parts::relu(
        file.matrix(&tensor(encoder, "weight"), [("n_features", n), ("d_in", d)])?,
        file.vector(&b_enc, ("n_features", n))?,
        file.matrix(&tensor(decoder, "weight"), [("d_in", d), ("n_features", n)])?.transposed(),
        file.vector(&b_dec, ("d_in", d))?,
        false,
    );
    file.finish()?;
    let mut facts = Facts { declared_kind: Some("standard".into()), ..Facts::default() };
    match parse_name(name) {
        Some((model, layer)) => {
            facts.base_model = Some(model);
            facts.hooks_in = vec![format!("blocks.{layer}.hook_resid_post")];
            facts.sites_in = vec![Site::layer(layer, Point::ResidPost)];
            facts.prepend_bos = Some(true);
        }
        None => facts.notes.push("the file does not name its site".into()),
    }
    parts.load(path, SaeLayout::Goodfire, facts, &[&file])
}
