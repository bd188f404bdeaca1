//! SAELens: `cfg.json` and `sae_weights.safetensors`, with the settings of all versions.
//!
//! `W_enc [d_in, d_sae]`, `W_dec [d_sae, d_out]`. Until version 6 a TopK was a `standard`
//! architecture with `activation_fn` "topk"; a loader that misses this runs it as a ReLU.

use pellucid_engine::sae::{InputNormalization, SaeKind};
use serde_json::Value;

use super::super::file::WeightFile;
use super::super::hooks::site_of;
use super::super::info::{Facts, SaeRole};
use super::super::parts::Parts;
use super::super::settings::{BASE_MODEL_KEYS, Settings, text_at};
use super::{Format, Marks, Summary, json_or_null, no_members};
use crate::listing::Listing;
use crate::sae::{LoadedSae, SaeLayout};
use crate::{Error, Result};

pub(super) const FORMAT: Format =
    Format { layout: SaeLayout::Saelens, name: "SAELens", recognize, members: no_members, describe, read };

const SETTINGS: &str = "cfg.json";
const WEIGHTS: &str = "sae_weights.safetensors";

/// Settings of SAELens 6, for inference and training. Others could change the results.
const KNOWN: &[&str] = &[
    "architecture",
    "d_in",
    "d_sae",
    "d_out",
    "dtype",
    "device",
    "apply_b_dec_to_input",
    "normalize_activations",
    "reshape_activations",
    "metadata",
    "k",
    "rescale_acts_by_decoder_norm",
    "sae_lens_version",
    // Training only.
    "aux_loss_coefficient",
    "decoder_init_norm",
    "jumprelu_bandwidth",
    "jumprelu_init_threshold",
    "jumprelu_sparsity_loss_mode",
    "jumprelu_tanh_scale",
    "l0_coefficient",
    "l0_warm_up_steps",
    "l1_coefficient",
    "l1_warm_up_steps",
    "lp_norm",
    "matryoshka_widths",
    "mse_loss_normalization",
    "noise_scale",
    "pre_act_loss_coefficient",
    "topk_threshold_lr",
    "use_matryoshka_aux_loss",
    "use_sparse_activations",
];

fn recognize(listing: &Listing, _: Marks<'_>) -> std::result::Result<(), &'static str> {
    if !listing.has(WEIGHTS) {
        return Err("there is no sae_weights.safetensors");
    }
    match listing.has(SETTINGS) || !listing.has("config.json") {
        true => Ok(()),
        false => Err("there is no cfg.json"),
    }
}

fn describe(listing: &Listing) -> Summary {
    let settings = json_or_null(listing, SETTINGS);
    let kind = text_at(&settings, &["/architecture", "/metadata/architecture"]);
    let list = |pointers: &[&str]| text_at(&settings, pointers).into_iter().collect();
    Summary {
        count: 1,
        kind: kind.or_else(|| listing.has(SETTINGS).then(|| "standard".into())),
        base_model: text_at(&settings, BASE_MODEL_KEYS),
        hooks: list(&["/hook_name", "/hook_point", "/metadata/hook_name", "/metadata/hook_point"]),
        hooks_out: list(&["/hook_name_out", "/metadata/hook_name_out"]),
    }
}

fn read(listing: &Listing, _: &str) -> Result<LoadedSae> {
    let settings = Settings::required(listing, SETTINGS)?;
    let file = WeightFile::open(&listing.dir.join(WEIGHTS))?;
    let modern = settings.get("metadata").is_some();
    if modern {
        settings.check_keys(KNOWN)?;
    }
    let (architecture, k) = architecture(&settings)?;
    let transcoder = architecture.contains("transcoder");
    let d_in = settings.required_size("d_in")?;
    let n = match (settings.size("d_sae")?, settings.size("expansion_factor")?) {
        (Some(n), _) if n > 0 => n,
        (None, Some(factor)) if factor > 0 => d_in * factor,
        _ => return Err(settings.wrong("d_sae", "expected a positive whole number")),
    };
    let d_out = if transcoder { settings.required_size("d_out")? } else { d_in };

    let encoder = file.matrix("W_enc", [("d_in", d_in), ("d_sae", n)])?.transposed();
    let decoder = file.matrix("W_dec", [("d_sae", n), ("d_out", d_out)])?;
    let bias = |name: &str| file.vector(name, ("d_sae", n));
    let encoder_bias = if architecture == "gated" && !file.has("b_enc") { vec![0.0; n] } else { bias("b_enc")? };
    let decoder_bias = file.vector("b_dec", ("d_out", d_out))?;
    // A transcoder's decoder bias is in the space of its output.
    let subtract = !transcoder && settings.flag("apply_b_dec_to_input")?.unwrap_or(true);
    let mut parts = Parts::relu(encoder, encoder_bias, decoder, decoder_bias, subtract);
    let rescale = settings.flag("rescale_acts_by_decoder_norm")?;
    parts.kind = match architecture {
        "standard" | "transcoder" | "skip_transcoder" => SaeKind::Relu,
        "jumprelu" | "jumprelu_transcoder" | "jumprelu_skip_transcoder" => {
            SaeKind::JumpRelu { threshold: threshold(&file, n)? }
        }
        "gated" => {
            SaeKind::Gated { gate_bias: bias("b_gate")?, magnitude_bias: bias("b_mag")?, log_scale: bias("r_mag")? }
        }
        "topk" | "abstopk" => {
            parts.fold_norms = rescale.unwrap_or(false);
            let k = k.ok_or_else(|| settings.wrong("k", "it is missing"))?;
            if architecture == "topk" { SaeKind::TopK { k, by_decoder_norm: None } } else { SaeKind::AbsTopK { k } }
        }
        // Checkpoints of training; SAELens saves those for inference as `jumprelu`.
        "batchtopk" | "matryoshka_batchtopk" => {
            parts.fold_norms = rescale.unwrap_or(true);
            SaeKind::JumpRelu { threshold: batch_threshold(&file, n, parts.fold_norms, &parts)? }
        }
        other => return Err(unsupported(&settings, other)),
    };
    if architecture.contains("skip") {
        parts.skip = Some(file.matrix("W_skip", [("d_out", d_out), ("d_in", d_in)])?);
    }
    check_scaling_factor(&file, d_in, n)?;
    file.finish()?;

    let mut facts = facts(&settings, architecture, transcoder)?;
    parts.normalization = normalization(&settings, transcoder, &mut facts)?;
    parts.load(listing.dir.clone(), SaeLayout::Saelens, facts, &[&file])
}

/// The architecture, with TopK of old settings resolved, and k.
fn architecture(settings: &Settings) -> Result<(&str, Option<usize>)> {
    let mut architecture = settings.text("architecture")?.unwrap_or("standard");
    let mut k = settings.size("k")?;
    let function = settings.text("activation_fn")?.or(settings.text("activation_fn_str")?);
    match function {
        None | Some("relu") => {}
        Some("topk") => {
            architecture = "topk";
            k = k.or(settings.inside("activation_fn_kwargs").size("k")?);
        }
        Some(other) => {
            return Err(Error::unsupported(
                format!("{}: the activation function `{other}` is not supported", settings.path.display()),
                "supported are relu and topk",
            ));
        }
    }
    Ok((architecture, k))
}

fn unsupported(settings: &Settings, architecture: &str) -> Error {
    let why = match architecture {
        "temporal" => "its features depend on earlier positions through attention layers",
        "matching_pursuit" => "it encodes by an iterative search, not by one matrix product",
        _ => "the architecture is unknown",
    };
    Error::unsupported(
        format!("{}: architecture `{architecture}`: {why}", settings.path.display()),
        "supported are standard, gated, jumprelu, topk, abstopk, batchtopk, matryoshka_batchtopk and the transcoders",
    )
}

fn threshold(file: &WeightFile, n: usize) -> Result<Vec<f32>> {
    if file.has("threshold") {
        return file.vector("threshold", ("d_sae", n));
    }
    let log = file.vector("log_threshold", ("d_sae", n))?;
    Ok(log.into_iter().map(f32::exp).collect())
}

/// The threshold of a training checkpoint: one value for all features, in units of the rescaled
/// activations.
fn batch_threshold(file: &WeightFile, n: usize, rescaled: bool, parts: &Parts) -> Result<Vec<f32>> {
    if file.has("threshold") {
        return file.vector("threshold", ("d_sae", n));
    }
    let threshold = file.scalar("topk_threshold")?;
    let mut row = vec![0.0; parts.decoders[0].cols];
    let unfolded = |feature: usize| {
        parts.decoders[0].row(feature, &mut row);
        let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        // Folding the norms multiplies by the norm again.
        if rescaled && norm > 0.0 { (f64::from(threshold) / norm) as f32 } else { threshold }
    };
    Ok((0..n).map(unfolded).collect())
}

/// Old files may have a per-feature scale of all ones, which is not used.
fn check_scaling_factor(file: &WeightFile, d_in: usize, n: usize) -> Result<()> {
    for name in ["scaling_factor", "finetuning_scaling_factor"] {
        if !file.has(name) {
            continue;
        }
        let len = file.len(name)?;
        if len != n && len != d_in {
            return Err(file.wrong(name, format!("its length is {len}; expected d_sae {n}")));
        }
        if file.vector(name, ("d_sae", len))?.iter().any(|x| (x - 1.0).abs() > 1e-5) {
            return Err(Error::unsupported(
                format!("{}: tensor `{name}` is not all ones: a finetuned scale is not supported", file.path.display()),
                "use the autoencoder without finetuning",
            ));
        }
    }
    Ok(())
}

fn normalization(settings: &Settings, transcoder: bool, facts: &mut Facts) -> Result<InputNormalization> {
    let mode = match settings.get("normalize_activations") {
        None | Some(Value::Bool(false)) => "none",
        Some(Value::Bool(true)) => "expected_average_only_in",
        Some(Value::String(mode)) => mode,
        Some(other) => return Err(settings.wrong("normalize_activations", format!("unknown mode {other}"))),
    };
    let normalization = match mode {
        "none" => InputNormalization::None,
        "expected_average_only_in" => {
            facts.notes.push(
                "trained on inputs times a constant (expected_average_only_in) that the file does not hold; it is \
                 used without one, as in SAELens"
                    .into(),
            );
            InputNormalization::None
        }
        "constant_norm_rescale" => InputNormalization::UnitNorm,
        "layer_norm" => InputNormalization::LayerNorm,
        other => {
            return Err(Error::unsupported(
                format!("{}: normalize_activations `{other}` is not supported", settings.path.display()),
                "supported are none, expected_average_only_in, constant_norm_rescale and layer_norm; \
                 covariance_whitening is folded into the weights when SAELens saves for inference",
            ));
        }
    };
    if transcoder && normalization != InputNormalization::None {
        return Err(Error::unsupported(
            format!("{}: a transcoder with normalize_activations `{mode}` is not supported", settings.path.display()),
            "SAELens normalizes its input and never scales its output back",
        ));
    }
    Ok(normalization)
}

fn facts(settings: &Settings, architecture: &str, transcoder: bool) -> Result<Facts> {
    let metadata = settings.inside("metadata");
    // Version 6 keeps these under `metadata`, older versions at the top.
    let text = |key: &str| -> Result<Option<String>> {
        Ok(metadata.text(key)?.or(settings.text(key)?).map(str::to_owned).filter(|text| !text.is_empty()))
    };
    let hook = text("hook_name")?.or(text("hook_point")?).or(text("hf_hook_name")?);
    let hook_out = text("hook_name_out")?.or(text("hf_hook_name_out")?).filter(|_| transcoder);
    let base_model = text("model_name")?;
    let site = |hook: &Option<String>| hook.as_deref().and_then(|hook| site_of(hook, base_model.as_deref()));
    let mut facts = Facts {
        // A BatchTopK is saved for inference as `jumprelu`.
        declared_kind: text("training_architecture")?.or(Some(architecture.to_owned())),
        role: transcoder.then_some(SaeRole::Transcoder),
        sites_in: site(&hook).into_iter().collect(),
        sites_out: site(&hook_out).into_iter().collect(),
        prepend_bos: metadata.flag("prepend_bos")?.or(settings.flag("prepend_bos")?),
        context_size: metadata.size("context_size")?.or(settings.size("context_size")?),
        ..Facts::default()
    };
    if facts.prepend_bos.is_none() && !metadata.exists() {
        facts.prepend_bos = Some(true);
    }
    let head = metadata.size("hook_head_index")?.or(settings.size("hook_head_index")?);
    let head = head.or(settings.size("hook_point_head_index")?);
    if let Some(head) = head {
        facts.notes.push(format!("reads head {head} alone; sites of one head cannot be attached to"));
        facts.sites_in.clear();
    }
    if hook.as_deref().is_some_and(|hook| hook.ends_with("hook_z")) {
        facts.notes.push("reads all heads of z, concatenated".into());
    }
    let kwargs = metadata.get("model_from_pretrained_kwargs").or(settings.get("model_from_pretrained_kwargs"));
    for (name, value) in kwargs.and_then(Value::as_object).into_iter().flatten() {
        facts.weight_processing.push(format!("{name}={value}"));
    }
    let residual = hook.as_deref().is_some_and(|hook| hook.contains("resid"));
    let old = !metadata.exists();
    if old && kwargs.is_none() && residual && base_model.as_deref().is_some_and(|name| name.starts_with("gpt2")) {
        facts.notes.push(
            "the settings do not say how the model's weights were processed; residual autoencoders of GPT-2 trained \
             before SAELens 3 need center_writing_weights"
                .into(),
        );
    }
    facts.hooks_in = hook.into_iter().collect();
    facts.hooks_out = hook_out.into_iter().collect();
    facts.base_model = base_model;
    Ok(facts)
}
