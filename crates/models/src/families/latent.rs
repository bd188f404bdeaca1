//! Multi-head latent attention (MLA), with DeepSeek's configuration keys and tensor names.

use super::Family;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::{rope, rope_scaling};
use pellucid_engine::architecture::{Attention, Latent, Norm, RopeStyle};

/// Replaces every attention of a family by MLA, with its rotary embedding and names.
pub(super) fn set_latent_attention(config: &Config, family: &mut Family, style: RopeStyle) -> Result<()> {
    let latent = Latent {
        query_rank: config.size_maybe("q_lora_rank")?,
        kv_rank: config.size("kv_lora_rank")?,
        rope_dim: config.size("qk_rope_head_dim")?,
        // transformers uses its default epsilon here, not that of the configuration.
        norm: Norm::rms(1e-6),
        bias: config.flag_or("attention_bias", false)?,
        query_scale: None,
        kv_scale: None,
    };
    let (nope_dim, value_dim) = (config.size("qk_nope_head_dim")?, config.size("v_head_dim")?);
    if nope_dim == 0 {
        return Err(config.bad("qk_nope_head_dim", "is 0, so there is no key part without rotary"));
    }
    let score_scale = yarn_magnitude(config)?;
    family.each_attention(|a| {
        let plain = Attention::plain(a.heads, a.heads, nope_dim + latent.rope_dim);
        *a = Attention {
            value_dim,
            latent: Some(latent),
            out_bias: latent.bias,
            rope: Some(0),
            scale: plain.scale * score_scale * score_scale,
            ..plain
        };
    });
    family.architecture.ropes = vec![rope(config, latent.rope_dim, style)?];
    family.names = mla_names(std::mem::take(&mut family.names), latent, nope_dim, value_dim);
    Ok(())
}

/// Rotary style: interleaved unless `rope_interleave` is false.
pub(super) fn mla_rope_style(config: &Config) -> Result<RopeStyle> {
    Ok(if config.flag_or("rope_interleave", true)? { RopeStyle::Pairs } else { RopeStyle::Halves })
}

/// Fused tensors: the KV down-projection with the rotary part of K, and K with V head by head.
fn mla_names(names: Names, latent: Latent, nope_dim: usize, value_dim: usize) -> Names {
    let down = latent.kv_rank + latent.rope_dim;
    let (kv_down, kv) = ("layers.{l}.self_attn.kv_a_proj_with_mqa", "layers.{l}.self_attn.kv_b_proj");
    let query = if latent.query_rank.is_some() { "q_b_proj" } else { "q_proj" };
    names
        .removing(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with(&[
            ("layers.{l}.attn.q", format!("layers.{{l}}.self_attn.{query}")),
            ("layers.{l}.attn.q_down", "layers.{l}.self_attn.q_a_proj".into()),
            ("layers.{l}.attn.q_down_norm", "layers.{l}.self_attn.q_a_layernorm".into()),
            ("layers.{l}.attn.kv_down_norm", "layers.{l}.self_attn.kv_a_layernorm".into()),
        ])
        .with_part("layers.{l}.attn.kv_down", kv_down, StoredPart::rows(0, down))
        .with_part("layers.{l}.attn.k_rotated", kv_down, StoredPart::rows(latent.kv_rank, down))
        .with_part("layers.{l}.attn.k", kv, StoredPart::grouped(0, nope_dim, nope_dim + value_dim))
        .with_part("layers.{l}.attn.v", kv, StoredPart::grouped(nope_dim, value_dim, nope_dim + value_dim))
}

/// YaRN's multiplier of Q and K (`mscale_all_dim`); 1 if there is none.
fn yarn_magnitude(config: &Config) -> Result<f32> {
    let Some(scaling) = rope_scaling(config) else { return Ok(1.0) };
    if scaling.text("rope_type").or_else(|| scaling.text("type")).unwrap_or("default") == "default" {
        return Ok(1.0);
    }
    match scaling.number_or("mscale_all_dim", 0.0)? {
        0.0 => Ok(1.0),
        weight => {
            let factor = scaling.number("factor")?;
            Ok(if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 })
        }
    }
}
