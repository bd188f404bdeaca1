//! Gemma Scope: `params.npz` with a JumpReLU. Nothing else is in the directory: model and site are
//! in the repository's name, layer and L0 in the names of directories
//! (`gemma-scope-2b-pt-res/layer_12/width_16k/average_l0_82/params.npz`).
//!
//! The decoder bias is not subtracted from the input.

use pellucid_engine::sae::SaeKind;
use pellucid_engine::{Point, Site};

use super::super::file::WeightFile;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{number_after, path_parts, whole_path};
use super::{Format, Marks, Summary, no_members};
use crate::Result;
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::GemmaScope, name: "Gemma Scope", recognize, members: no_members, describe, read };

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    if listing.has("params.npz") { Ok(()) } else { Err("there is no params.npz") }
}

/// The facts in a path's names.
struct PathFacts {
    base_model: Option<String>,
    hook: Option<String>,
    hook_out: Option<String>,
    site: Option<Site>,
    site_out: Option<Site>,
}

impl PathFacts {
    fn read(path: &str) -> PathFacts {
        let release = path_parts(path).find_map(|part| part.split_once("gemma-scope-").map(|(_, rest)| rest));
        let mut words = release.unwrap_or_default().split('-');
        let (size, tuned, site) = (words.next(), words.next(), words.next());
        let base_model = size.filter(|size| ["2b", "9b", "27b"].contains(size)).map(|size| {
            let ending = if tuned == Some("it") { "-it" } else { "" };
            format!("google/gemma-2-{size}{ending}")
        });
        let layer = path_parts(path).find_map(|part| part.strip_prefix("layer_")?.parse::<usize>().ok());
        let (input, output) = match site {
            Some("res") => (Some(("hook_resid_post", Point::ResidPost)), None),
            Some("mlp") => (Some(("hook_mlp_out", Point::MlpOutPost)), None),
            Some("att") => (Some(("attn.hook_z", Point::Z)), None),
            // Before the norm's gain.
            Some("transcoders") => {
                (Some(("ln2.hook_normalized", Point::MlpNormed)), Some(("hook_mlp_out", Point::MlpOutPost)))
            }
            _ => (None, None),
        };
        if site == Some("res") && path_parts(path).any(|part| part == "embedding") {
            let (hook, site) = (Some("hook_embed".to_owned()), Some(Site::model(Point::Embed)));
            return PathFacts { base_model, hook, hook_out: None, site, site_out: None };
        }
        let hook = |end: Option<(&str, Point)>| Some(format!("blocks.{}.{}", layer?, end?.0));
        let at = |end: Option<(&str, Point)>| Some(Site::layer(layer?, end?.1));
        PathFacts { base_model, hook: hook(input), hook_out: hook(output), site: at(input), site_out: at(output) }
    }
}

fn describe(listing: &Listing) -> Summary {
    let facts = PathFacts::read(&whole_path(&listing.dir));
    Summary {
        count: 1,
        kind: Some("jumprelu".into()),
        base_model: facts.base_model,
        hooks: facts.hook.into_iter().collect(),
        hooks_out: facts.hook_out.into_iter().collect(),
    }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    let path = whole_path(&listing.dir);
    let file = WeightFile::open(&listing.dir.join("params.npz"))?;
    let w_enc = file.first(&["W_enc", "w_enc"]).unwrap_or("W_enc");
    let w_dec = file.first(&["W_dec", "w_dec"]).unwrap_or("W_dec");
    let (n, d_out) = (file.len("b_enc")?, file.len("b_dec")?);
    let transcoder = path.contains("transcoders");
    // The width comes from the tensors: z of 27b has another than the residual stream.
    let d_in = match file.shape(w_enc)? {
        [d_in, _] if transcoder => *d_in,
        _ => d_out,
    };
    let encoder = file.matrix(w_enc, [("d_in", d_in), ("n_features", n)])?.transposed();
    let decoder = file.matrix(w_dec, [("n_features", n), ("d_out", d_out)])?;
    let (encoder_bias, decoder_bias) =
        (file.vector("b_enc", ("n_features", n))?, file.vector("b_dec", ("d_out", d_out))?);
    let mut parts = Parts::relu(encoder, encoder_bias, decoder, decoder_bias, false);
    parts.kind = SaeKind::JumpRelu { threshold: file.vector("threshold", ("n_features", n))? };
    file.finish()?;

    let named = PathFacts::read(&path);
    let mut facts = Facts {
        declared_kind: Some("jumprelu".into()),
        role: transcoder.then_some(SaeRole::Transcoder),
        prepend_bos: Some(true),
        context_size: Some(1024),
        declared_l0: number_after(&path, "average_l0_").map(|l0| l0 as f64),
        hooks_in: named.hook.into_iter().collect(),
        hooks_out: named.hook_out.into_iter().collect(),
        sites_in: named.site.into_iter().collect(),
        sites_out: named.site_out.into_iter().collect(),
        base_model: named.base_model,
        ..Facts::default()
    };
    if facts.sites_in.is_empty() {
        facts.notes.push(
            "the path does not name the release, so the site is unknown; keep the directories as published \
             (gemma-scope-2b-pt-res/layer_12/…)"
                .into(),
        );
    }
    if path_parts(&path).any(|part| part == "embedding") {
        facts.notes.push("reads embeddings before their scale of sqrt(d_model)".into());
    }
    parts.load(listing.dir.clone(), SaeLayout::GemmaScope, facts, &[&file])
}
