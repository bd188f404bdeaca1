//! OLMo in its four forms.

use super::Family;
use super::llama::{llama_like, slide};
use super::relatives::{post_norms, softmax_experts};
use crate::config::Config;
use crate::error::Result;
use crate::rope::by_layer_type;
use pellucid_engine::architecture::{Gain, Norm, NormKind, NormSpan};

/// OLMo: norms without anything learned.
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

/// OLMo 2: norms after the sublayers instead of before, and on all queries and all keys together.
pub(super) fn olmo2(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    norm_all_heads(&mut family);
    family.set_attention_bias(bias);
    family.each(|layer| {
        (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.names = family.names.with(&post_norms("post_attention_layernorm", "post_feedforward_layernorm"));
    Ok(family)
}

/// OLMo 3: OLMo 2 whose layers slide by type, each kind with its own rotary base.
pub(super) fn olmo3(config: &Config) -> Result<Family> {
    let mut family = olmo2(config)?;
    slide(config, &mut family, config.size_maybe("sliding_window")?, |layer| !(layer + 1).is_multiple_of(4))?;
    family.architecture.ropes = by_layer_type(config, family.head_dim())?;
    family.each_attention(|a| a.rope = Some(usize::from(a.window.is_some())));
    Ok(family)
}

/// OLMoE: experts in every layer, a norm on all queries and all keys together.
pub(super) fn olmoe(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    let clip = config.number_maybe("clip_qkv")?;
    norm_all_heads(&mut family);
    family.set_attention_bias(bias);
    family.each_attention(|a| a.clip = clip);
    softmax_experts(config, &mut family, config.size("num_experts")?, config.size("intermediate_size")?, |_| true)?;
    Ok(family)
}

/// A norm of all queries together and of all keys together, like those of the blocks.
pub(super) fn norm_all_heads(family: &mut Family) {
    family.each(|layer| {
        if let Some(a) = &mut layer.attention {
            (a.qk_norm, a.qk_norm_span) = (layer.attn_norm, NormSpan::All);
        }
    });
}
