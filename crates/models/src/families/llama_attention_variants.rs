//! Llama variants that change attention or the activation itself: Apertus, BitNet, DiffLlama, Doge,
//! Granite SWA, Ministral 3, NanoChat.

use super::Family;
use super::granite_moe::rope_by_layer;
use super::llama::{llama, llama_like, mistral_like, set_sliding_window};
use super::llama_variants::{granite, with_llama3_scaling};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::rope::{rope, rope_parameters_or, rope_scaling};
use pellucid_engine::architecture::{Dense, DynamicMask, Gain, Mlp, Norm, NormKind, PositionScale, RopeStyle, Skip};
use serde_json::json;

/// Apertus: ungated MLPs with a learned activation (xIELU), QK norm.
pub(super) fn apertus(config: &Config) -> Result<Family> {
    let config = &with_llama3_scaling(config, 8.0)
        .with_defaults([("rms_norm_eps", json!(1e-5)), ("rope_theta", json!(12_000_000.0))]);
    let learned = config.text("hidden_act").is_none_or(|name| name == "xielu");
    let named = if learned { config.with("hidden_act", "linear".into()) } else { config.clone() };
    let mut family = llama(&named.with("mlp_bias", false.into()))?;
    let norm = family.architecture.final_norm;
    family.each_attention(|a| a.qk_norm = norm);
    family.each_dense(|dense| *dense = Dense { xielu: learned, ..Dense::plain(dense.width, dense.activation) });
    family.names = family
        .names
        .replacing("layers.{l}.attn.norm", "layers.{l}.attention_layernorm")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.feedforward_layernorm")
        .with_bare(&[
            ("layers.{l}.mlp.xielu_positive", "layers.{l}.mlp.act_fn.alpha_p"),
            ("layers.{l}.mlp.xielu_negative", "layers.{l}.mlp.act_fn.alpha_n"),
        ])
        // Constants of the activation that checkpoints store.
        .ignoring(&[".mlp.act_fn.beta", ".mlp.act_fn.eps"]);
    Ok(family)
}

/// BitNet: a norm before the output projection of each sublayer.
pub(super) fn bitnet(config: &Config) -> Result<Family> {
    let config = config.with_defaults([
        ("hidden_act", json!("relu2")),
        ("num_key_value_heads", json!(5)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(500_000.0)),
    ]);
    let mut family = llama(&config.with("mlp_bias", false.into()))?;
    let norm = Norm::rms(config.number_or("rms_norm_eps", 1e-5)?);
    family.each_attention(|a| a.out_norm = Some(norm));
    family.each_dense(|dense| dense.inner_norm = Some(norm));
    family.names = family.names.with(&[
        ("layers.{l}.attn.out_norm", "layers.{l}.self_attn.attn_sub_norm"),
        ("layers.{l}.mlp.inner_norm", "layers.{l}.mlp.ffn_sub_norm"),
    ]);
    Ok(family)
}

/// DiffLlama: differential attention; heads are paired, and the second is subtracted from the
/// first.
pub(super) fn diffllama(config: &Config) -> Result<Family> {
    let config = config.with_defaults([("rms_norm_eps", json!(1e-5))]);
    let mut family = llama(&config.with("mlp_bias", false.into()))?;
    let norm =
        Norm { kind: NormKind::Rms, eps: config.number_or("rms_norm_eps", 1e-5)?, gain: Gain::None, bias: false };
    let mut index = 0;
    family.each_attention(|a| {
        (a.differential, a.out_norm) = (Some(0.8 - 0.6 * (-0.3 * index as f32).exp()), Some(norm));
        index += 1;
    });
    family.names = family.names.with_bare(&[
        ("layers.{l}.attn.lambda_q1", "layers.{l}.self_attn.lambda_q1"),
        ("layers.{l}.attn.lambda_k1", "layers.{l}.self_attn.lambda_k1"),
        ("layers.{l}.attn.lambda_q2", "layers.{l}.self_attn.lambda_q2"),
        ("layers.{l}.attn.lambda_k2", "layers.{l}.self_attn.lambda_k2"),
    ]);
    Ok(family)
}

/// Doge: a learned dynamic mask on the keys, learned gains on the residual connections.
pub(super) fn doge(config: &Config) -> Result<Family> {
    if config.flag_or("is_moe", false)? {
        return Err(Error::unsupported(
            "`is_moe` needs Doge's retrieval experts, whose reference implementation is not causal",
            "use a Doge model without experts",
        ));
    }
    let mut family = llama(config)?;
    let (norm, bias) = (Norm::rms(config.number_or("rms_norm_eps", 1e-6)?), config.flag_or("attention_bias", false)?);
    let mask = DynamicMask { bias, max_keys: config.size_or("keep_window_size", 2048)? };
    family.each_attention(|a| (a.qk_norm, a.dynamic_mask) = (Some(norm), Some(mask)));
    family.each(|layer| layer.skip = Skip::LearnedGain);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |_| true)?;
    family.names = family.names.with(&[("layers.{l}.attn.mask", "layers.{l}.self_attn.dt_proj")]).with_bare(&[
        ("layers.{l}.attn.mask_rate", "layers.{l}.self_attn.A"),
        ("layers.{l}.attn.skip", "layers.{l}.input_residual"),
        ("layers.{l}.mlp.skip", "layers.{l}.post_attention_residual"),
    ]);
    Ok(family)
}

/// Granite SWA: sliding windows, attention sinks, a rotary base per layer (0: no rotary).
pub(super) fn granite_swa(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(4)), ("rms_norm_eps", json!(1e-5))]);
    let mut family = granite(config)?;
    set_sliding_window(config, &mut family, Some(config.size_or("sliding_window", 128)?), |layer| layer % 4 != 0)?;
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    add_sinks(&mut family);
    rope_by_layer(config, &mut family)?;
    Ok(family)
}

/// Adds attention sinks: one learned softmax logit per head.
pub(super) fn add_sinks(family: &mut Family) {
    family.each_attention(|a| a.sinks = true);
    family.names =
        std::mem::take(&mut family.names).with_bare(&[("layers.{l}.attn.sinks", "layers.{l}.self_attn.sinks")]);
}

/// Ministral 3: queries are scaled by their position.
pub(super) fn ministral3(config: &Config) -> Result<Family> {
    let config = config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("max_position_embeddings", json!(262_144)),
    ]);
    let default = json!({
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    });
    let config = &if rope_scaling(&config).is_some() { config } else { rope_parameters_or(&config, default) };
    let mut family = mistral_like(config)?;
    let parameters = rope_scaling(config).unwrap_or_else(|| config.clone());
    if let Some(scale) = parameters.number_maybe("llama_4_scaling_beta")? {
        let span = match parameters.number_maybe("original_max_position_embeddings")? {
            Some(span) => span,
            None => config.number("max_position_embeddings")?,
        };
        family.each_attention(|a| a.position_scale = Some(PositionScale { scale, span, offset: 0.0 }));
    }
    Ok(family)
}

/// NanoChat: norms without parameters, also on the embedding and on Q and K after rotary; ungated
/// MLPs.
pub(super) fn nanochat(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("hidden_act", json!("relu2")), ("final_logit_softcapping", json!(15.0))]);
    let mut family = llama_like(config)?;
    let norm =
        Norm { kind: NormKind::Rms, eps: config.number_or("rms_norm_eps", 1e-6)?, gain: Gain::None, bias: false };
    family.set_norms(norm);
    family.set_attention_bias(config.flag_or("attention_bias", false)?);
    family.each_attention(|a| (a.qk_norm, a.qk_norm_after_rope) = (Some(norm), true));
    family.each(|layer| {
        if let Some(Mlp::Dense(dense)) = &mut layer.mlp {
            *dense = Dense::plain(dense.width, dense.activation);
        }
    });
    // The rotation has the opposite sign.
    let mut negated = rope(config, family.head_dim(), RopeStyle::Halves)?;
    negated.frequencies.iter_mut().for_each(|frequency| *frequency = -*frequency);
    family.architecture.ropes = vec![negated];
    family.architecture.embedding.norm = Some(norm);
    family.architecture.head.soft_cap = config.number_maybe("final_logit_softcapping")?;
    family.names = family
        .names
        .replacing("layers.{l}.mlp.up", "layers.{l}.mlp.fc1")
        .replacing("layers.{l}.mlp.down", "layers.{l}.mlp.fc2");
    Ok(family)
}
