//! OLMo, OLMo 2, OLMo 3, OLMoE and FlexOlmo.

use super::Family;
use super::experts::Mixture;
use super::llama::{llama_like, set_sliding_window};
use super::llama_variants::post_norms;
use crate::config::Config;
use crate::error::Result;
use crate::rope::{rope_parameters_by_layer_type, ropes_by_layer_type};
use pellucid_engine::architecture::{Gain, Norm, NormKind, NormSpan, Routing};
use serde_json::json;

/// OLMo: layer norms without parameters.
pub(super) fn olmo(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let (norm, bias) = (
        Norm { kind: NormKind::Layer, eps: 1e-5, gain: Gain::None, bias: false },
        config.flag_or("attention_bias", false)?,
    );
    let clip = config.number_maybe("clip_qkv")?;
    family.set_norms(norm);
    family.set_attention_bias(bias);
    family.each_attention(|a| a.clip = clip);
    Ok(family)
}

/// OLMo 2: post-norms instead of pre-norms, QK norm over all heads.
pub(super) fn olmo2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("rms_norm_eps", json!(1e-5))]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    set_qk_norm_all_heads(&mut family);
    family.set_attention_bias(bias);
    family.each(|layer| {
        (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.names = family.names.with(&post_norms("post_attention_layernorm", "post_feedforward_layernorm"));
    Ok(family)
}

/// OLMo 3: OLMo 2 with sliding windows and a rotary base by layer type.
pub(super) fn olmo3(config: &Config) -> Result<Family> {
    let base = ("rope_theta", 500_000.0);
    let config = &rope_parameters_by_layer_type(config, base, base)?.with_defaults([("sliding_window", json!(4096))]);
    let mut family = olmo2(config)?;
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| {
        !(layer + 1).is_multiple_of(4)
    })?;
    family.architecture.ropes = ropes_by_layer_type(config, family.head_dim())?;
    family.each_attention(|a| a.rope = Some(usize::from(a.window.is_some())));
    Ok(family)
}

/// OLMoE: experts in every layer, QK norm over all heads.
pub(super) fn olmoe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(64))),
        ("num_experts_per_tok", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    let clip = config.number_maybe("clip_qkv")?;
    set_qk_norm_all_heads(&mut family);
    family.set_attention_bias(bias);
    family.each_attention(|a| a.clip = clip);
    set_experts_in_all_layers(config, &mut family)?;
    Ok(family)
}

/// FlexOlmo: OLMo 2 with experts in every layer.
pub(super) fn flex_olmo(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(7))),
        ("num_experts_per_tok", json!(5)),
        ("rms_norm_eps", json!(1e-6)),
        ("rope_theta", json!(500_000.0)),
    ]);
    let mut family = olmo2(config)?;
    set_experts_in_all_layers(config, &mut family)?;
    Ok(family)
}

fn set_experts_in_all_layers(config: &Config, family: &mut Family) -> Result<()> {
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing::softmax(config.flag_or("norm_topk_prob", false)?),
        shared_width: 0,
    };
    mixture.apply_to_all_layers(family);
    Ok(())
}

/// Sets a QK norm over all heads, of the same kind as the pre-norm of attention.
pub(super) fn set_qk_norm_all_heads(family: &mut Family) {
    family.each(|layer| {
        if let Some(a) = &mut layer.attention {
            (a.qk_norm, a.qk_norm_span) = (layer.attn_norm, NormSpan::All);
        }
    });
}
