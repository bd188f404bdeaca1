//! Llama Scope: `hyperparams.json` and `checkpoints/final.safetensors`; the later R1 distillation
//! has `config.json` and `sae_weights.safetensors`.
//!
//! Weights of `nn.Linear`: `encoder.weight [n, d_in]`, `decoder.weight [d_out, n]`. Inputs are
//! scaled to a mean norm of sqrt(d), by the mean norms that the settings hold. The scalar threshold
//! of `hyperparams.json` is in units of unscaled inputs, so it is multiplied by the same scale.

use pellucid_engine::sae::{InputNormalization, SaeKind};

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{BASE_MODEL_KEYS, Settings, text_at, whole_path};
use super::{Format, Marks, Summary, json_or_null, no_members};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::LlamaScope, name: "Llama Scope", recognize, members: no_members, describe, read };

fn recognize(listing: &Listing, marks: Marks<'_>) -> std::result::Result<(), &'static str> {
    if listing.has("hyperparams.json") && listing.has_dir("checkpoints") {
        return Ok(());
    }
    if !listing.has("config.json") {
        return Err("there is neither hyperparams.json with checkpoints/ nor a config.json");
    }
    match marks() {
        _ if listing.has("sae_weights.safetensors") && !listing.has("cfg.json") => Ok(()),
        Some(marks) if marks.hook_point_in && !marks.model_type => Ok(()),
        _ => Err("config.json has no hook_point_in"),
    }
}

fn settings_file(listing: &Listing) -> &'static str {
    if listing.has("hyperparams.json") { "hyperparams.json" } else { "config.json" }
}

/// The base model is in the settings of some releases, and in the repository's name of others
/// (`Llama3_1-8B-Base-LXR-8x`).
fn base_model(listing: &Listing) -> Option<String> {
    text_at(&json_or_null(listing, settings_file(listing)), BASE_MODEL_KEYS)
        .or_else(|| text_at(&json_or_null(listing, "lm_config.json"), BASE_MODEL_KEYS))
        .or_else(|| {
            let whole = whole_path(&listing.dir);
            whole.contains("Llama3_1-8B-Base").then(|| "meta-llama/Llama-3.1-8B".into())
        })
}

fn describe(listing: &Listing) -> Summary {
    let settings = json_or_null(listing, settings_file(listing));
    let list = |pointer: &str| text_at(&settings, &[pointer]).into_iter().collect();
    Summary {
        count: 1,
        kind: text_at(&settings, &["/act_fn", "/sae_type"]),
        base_model: base_model(listing),
        hooks: list("/hook_point_in"),
        hooks_out: list("/hook_point_out"),
    }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    let settings = Settings::required(listing, settings_file(listing))?;
    let weights =
        if listing.has("hyperparams.json") { "checkpoints/final.safetensors" } else { "sae_weights.safetensors" };
    let file = WeightFile::open(&listing.dir.join(weights))?;
    for (key, supported) in
        [("use_glu_encoder", false), ("use_decoder_bias", true), ("apply_decoder_bias_to_pre_encoder", false)]
    {
        if settings.flag(key)?.is_some_and(|value| value != supported) {
            return Err(Error::unsupported(
                format!("{}: `{key}` is {}, which is not supported", settings.path.display(), !supported),
                "published Llama Scope autoencoders do not have it",
            ));
        }
    }
    match settings.text("act_fn")? {
        None | Some("jumprelu" | "relu" | "topk") => {}
        Some(other) => {
            return Err(settings.wrong("act_fn", format!("the activation function `{other}` is not supported")));
        }
    }
    let (n, d_out) = (file.len("encoder.bias")?, file.len("decoder.bias")?);
    let d_in = settings.size("d_model")?.unwrap_or(d_out);
    settings.check_size("d_sae", n, "a number of features of")?;
    let mut parts = Parts::relu(
        file.matrix("encoder.weight", [("n_features", n), ("d_in", d_in)])?,
        file.vector("encoder.bias", ("n_features", n))?,
        file.matrix("decoder.weight", [("d_out", d_out), ("n_features", n)])?.transposed(),
        file.vector("decoder.bias", ("d_out", d_out))?,
        false,
    );
    let norms = settings.inside("dataset_average_activation_norm");
    let scale = |key: &str, width: usize| -> Result<Option<f64>> {
        let norm = norms.number(key)?.filter(|norm| *norm > 0.0);
        Ok(norm.map(|norm| (width as f64).sqrt() / norm))
    };
    let (scale_in, scale_out) = (scale("in", d_in)?, scale("out", d_out)?);
    parts.kind = if file.has("log_jumprelu_threshold") {
        let log = file.vector("log_jumprelu_threshold", ("n_features", n))?;
        SaeKind::JumpRelu { threshold: log.into_iter().map(f32::exp).collect() }
    } else {
        match (settings.text("act_fn")?, settings.number("jump_relu_threshold")?) {
            (Some("topk"), _) => SaeKind::TopK { k: settings.required_size("top_k")?, by_decoder_norm: None },
            (Some("relu"), _) => SaeKind::Relu,
            (_, Some(threshold)) => {
                SaeKind::JumpRelu { threshold: vec![(threshold * scale_in.unwrap_or(1.0)) as f32; n] }
            }
            (_, None) => return Err(settings.wrong("jump_relu_threshold", "it is missing")),
        }
    };
    file.finish()?;

    let base_model = base_model(listing);
    let hook = |key: &str| -> Result<Option<String>> { Ok(settings.text(key)?.map(str::to_owned)) };
    let (hook_in, hook_out) = (hook("hook_point_in")?, hook("hook_point_out")?);
    let transcoder = hook_out.is_some() && hook_in != hook_out;
    if let Some(scale_in) = scale_in {
        parts.normalization = InputNormalization::Constant(scale_in as f32);
        // Reconstructions are divided by the scale of the input, which must be that of the output.
        if scale_out.is_some_and(|out| (out / scale_in - 1.0).abs() > 1e-6) {
            return Err(Error::unsupported(
                format!("{}: mean norms of input and output differ, which is not supported", settings.path.display()),
                "use an autoencoder that reads and writes the same activation",
            ));
        }
    }
    let site = |hook: &Option<String>| hook.as_deref().and_then(|hook| site_of(hook, base_model.as_deref()));
    let mut facts = Facts {
        declared_kind: settings.text("act_fn")?.map(str::to_owned),
        role: transcoder.then_some(SaeRole::Transcoder),
        sites_in: site(&hook_in).into_iter().collect(),
        sites_out: site(&hook_out).into_iter().collect(),
        hooks_in: hook_in.into_iter().collect(),
        hooks_out: hook_out.filter(|_| transcoder).into_iter().collect(),
        prepend_bos: Some(true),
        context_size: Some(1024),
        ..Facts::default()
    };
    let norm = settings.text("norm_activation")?;
    if scale_in.is_none() && matches!(norm, Some("dataset-wise" | "token-wise" | "batch-wise")) {
        facts.notes.push(format!(
            "trained on {} normalized inputs, but the settings hold no mean norms; it is used without a scale",
            norm.unwrap_or_default()
        ));
    }
    facts.base_model = base_model;
    parts.load(listing.dir.clone(), SaeLayout::LlamaScope, facts, &[&file])
}
