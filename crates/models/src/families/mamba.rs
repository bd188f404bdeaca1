//! Mamba, Falcon Mamba and Mamba 2: recurrent layers only.

use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Embedding, Gain, GroupedNorm, Head, Layer, Mamba, Mamba2, Modules, Norm, Recurrence,
};

/// Mamba: one selective scan (S6) per layer.
pub(super) fn mamba(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let spec = Mamba {
        inner_width: config.size_or("intermediate_size", config.size_or("expand", 2)? * width)?,
        state_size: config.size_or("state_size", 16)?,
        // Some configurations have "auto".
        dt_rank: config.size_maybe("time_step_rank").ok().flatten().unwrap_or(width.div_ceil(16)),
        conv_kernel: config.size_or("conv_kernel", 4)?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        bias: config.flag_or("use_bias", false)?,
        activation: activation(config, "hidden_act", "silu")?,
        inner_norm: None,
    };
    let names = mamba_names(backbone_names(), "layers.{l}.mixer", &spec);
    recurrent_model(config, Recurrence::Mamba(spec), names)
}

/// Falcon Mamba: RMS norms without gains on dt, B and C.
pub(super) fn falcon_mamba(config: &Config) -> Result<Family> {
    let mut family = mamba(config)?;
    let norm = Norm { gain: Gain::None, ..Norm::rms(config.number_or("mixer_rms_eps", 1e-6)?) };
    family.each(|layer| {
        if let Some(Recurrence::Mamba(spec)) = &mut layer.recurrence {
            spec.inner_norm = Some(norm);
        }
    });
    Ok(family)
}

/// Mamba 2: one multi-head selective scan (SSD) per layer.
pub(super) fn mamba2(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let channels = (config.number_or("expand", 2.0)? * width as f32) as usize;
    let head_dim = config.size_or("head_dim", 64)?;
    let norm = Norm::rms(config.number_or("layer_norm_epsilon", 1e-5)?);
    let bias = config.flag_or("use_bias", false)?;
    let spec = Mamba2 {
        heads: config.size_or("num_heads", channels / head_dim.max(1))?,
        head_dim,
        state_size: config.size_or("state_size", 128)?,
        groups: config.size_or("n_groups", 8)?,
        conv_kernel: config.size_or("conv_kernel", 4)?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        bias,
        out_bias: bias,
        activation: activation(config, "hidden_act", "silu")?,
        dt_limits: step_limits(config)?,
        norm: Some(GroupedNorm { norm, groups: 1, norm_before_gate: false }),
        in_scale: None,
        in_proj_multipliers: None,
    };
    let names = mamba2_names(backbone_names(), "layers.{l}.mixer", &spec);
    recurrent_model(config, Recurrence::Mamba2(spec), names)
}

/// Builds a model whose layers are all the same recurrence.
fn recurrent_model(config: &Config, recurrence: Recurrence, names: Names) -> Result<Family> {
    let norm = Norm::rms(config.number_or("layer_norm_epsilon", 1e-5)?);
    let layer = Layer { recurrence: Some(recurrence), ..Layer::empty(norm) };
    let tied = matches!(layer.recurrence, Some(Recurrence::Mamba(_)));
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width: config.size("hidden_size")?,
        context: None,
        embedding: Embedding::default(),
        layers: vec![layer; config.size("num_hidden_layers")?],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", tied)?, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: "backbone.layers".into(),
            embedding: Some("backbone.embeddings".into()),
            final_norm: Some("backbone.norm_f".into()),
            head: Some("lm_head".into()),
            ..Modules::default()
        },
    };
    Ok(Family { architecture, names })
}

fn backbone_names() -> Names {
    Names::new(&["backbone.", "model.", ""])
        .with(&[
            ("embed", "embeddings"),
            ("embed", "embedding"),
            ("layers.{l}.attn.norm", "layers.{l}.norm"),
            ("final_norm", "norm_f"),
        ])
        .without_prefix("head", "lm_head")
}

/// Adds the names of a Mamba mixer stored as `at`.
pub(super) fn mamba_names(names: Names, at: &str, m: &Mamba) -> Names {
    let (inner, low) = (format!("{at}.in_proj"), format!("{at}.x_proj"));
    let (two, all) = (2 * m.inner_width, m.dt_rank + 2 * m.state_size);
    names
        .with_part("layers.{l}.mixer.in", &inner, StoredPart::rows(0, two))
        .with_part("layers.{l}.mixer.gate", &inner, StoredPart::rows(m.inner_width, two))
        .with_part("layers.{l}.mixer.step_down", &low, StoredPart::rows(0, all))
        .with_part("layers.{l}.mixer.write", &low, StoredPart::rows(m.dt_rank, all))
        .with_part("layers.{l}.mixer.read", &low, StoredPart::rows(m.dt_rank + m.state_size, all))
        .with(&[
            ("layers.{l}.mixer.conv", format!("{at}.conv1d")),
            ("layers.{l}.mixer.step", format!("{at}.dt_proj")),
            ("layers.{l}.mixer.step_norm", format!("{at}.dt_layernorm")),
            ("layers.{l}.mixer.write_norm", format!("{at}.b_layernorm")),
            ("layers.{l}.mixer.read_norm", format!("{at}.c_layernorm")),
            ("layers.{l}.mixer.out", format!("{at}.out_proj")),
        ])
        .with_bare(&[("layers.{l}.mixer.rate", format!("{at}.A_log")), ("layers.{l}.mixer.skip", format!("{at}.D"))])
}

/// Adds the names of a Mamba 2 mixer stored as `at`. `in_proj` is the fused z, x, B, C, dt.
pub(super) fn mamba2_names(names: Names, at: &str, m: &Mamba2) -> Names {
    let (inner, channels, vectors) = (format!("{at}.in_proj"), m.heads * m.head_dim, m.groups * m.state_size);
    let total = 2 * channels + 2 * vectors + m.heads;
    let part = |start: usize| StoredPart::rows(start, total);
    names
        .with_part("layers.{l}.mixer.gate", &inner, part(0))
        .with_part("layers.{l}.mixer.in", &inner, part(channels))
        .with_part("layers.{l}.mixer.write", &inner, part(2 * channels))
        .with_part("layers.{l}.mixer.read", &inner, part(2 * channels + vectors))
        .with_part("layers.{l}.mixer.step", &inner, part(2 * channels + 2 * vectors))
        .with(&[
            ("layers.{l}.mixer.conv", format!("{at}.conv1d")),
            ("layers.{l}.mixer.norm", format!("{at}.norm")),
            ("layers.{l}.mixer.out", format!("{at}.out_proj")),
        ])
        .with_bare(&[
            ("layers.{l}.mixer.rate", format!("{at}.A_log")),
            ("layers.{l}.mixer.skip", format!("{at}.D")),
            ("layers.{l}.mixer.step_bias", format!("{at}.dt_bias")),
        ])
}

/// Limits of dt for families that have only a lower one (`time_step_min`).
pub(super) fn min_time_step(config: &Config) -> Result<(f32, f32)> {
    Ok((config.number_or("time_step_min", 0.001)?, f32::INFINITY))
}

/// Limits of dt (`time_step_limit`).
pub(super) fn step_limits(config: &Config) -> Result<(f32, f32)> {
    if config.get("time_step_limit").is_none() {
        return Ok((0.0, f32::INFINITY));
    }
    match config.numbers("time_step_limit")?[..] {
        [min, max] if min <= max => Ok((min, max)),
        _ => Err(config.bad("time_step_limit", "is not a pair of limits")),
    }
}
