//! OLMo in its four forms.

use super::Family;
use super::llama::{llama_like, slide};
use super::relatives::{post_norms, refused, softmax_experts};
use crate::config::Config;
use crate::error::Result;
use crate::rope::by_layer_type;
use pellucid_engine::architecture::{Gain, Norm, NormKind};

/// OLMo: norms without anything learned.
pub(super) fn olmo(config: &Config) -> Result<Family> {
    if config.get("clip_qkv").is_some() {
        return Err(refused("clip_qkv", "clipped queries, keys and values"));
    }
    let mut family = llama_like(config)?;
    let (norm, bias) = (
        Norm { kind: NormKind::Layer, eps: 1e-5, gain: Gain::None, bias: false },
        config.flag_or("attention_bias", false)?,
    );
    family.each(|layer| {
        (layer.attn_norm, layer.mlp_norm) = (Some(norm), Some(norm));
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
    });
    family.architecture.final_norm = Some(norm);
    Ok(family)
}

/// OLMo 2: norms after the sublayers instead of before, and on all queries and all keys together.
pub(super) fn olmo2(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each(|layer| {
        layer.attention.qk_norm = layer.attn_norm;
        layer.attention.qk_norm_flat = true;
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
        (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.names = family.names.with(&post_norms("post_attention_layernorm", "post_feedforward_layernorm"));
    Ok(family)
}

/// OLMo 3: OLMo 2 whose layers slide by type, each kind with its own rotary base.
pub(super) fn olmo3(config: &Config) -> Result<Family> {
    let mut family = olmo2(config)?;
    slide(config, &mut family, config.size_maybe("sliding_window")?, |layer| !(layer + 1).is_multiple_of(4))?;
    if let Some(first) = family.architecture.layers.first() {
        family.architecture.ropes = by_layer_type(config, first.attention.head_dim)?;
    }
    family.each(|layer| layer.attention.rope = Some(usize::from(layer.attention.window.is_some())));
    Ok(family)
}

/// OLMoE: experts in every layer, a norm on all queries and all keys together.
pub(super) fn olmoe(config: &Config) -> Result<Family> {
    if config.get("clip_qkv").is_some() {
        return Err(refused("clip_qkv", "clipped queries, keys and values"));
    }
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each(|layer| {
        layer.attention.qk_norm = layer.attn_norm;
        layer.attention.qk_norm_flat = true;
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
    });
    softmax_experts(config, &mut family, config.size("num_experts")?, config.size("intermediate_size")?, |_| true)?;
    Ok(family)
}
