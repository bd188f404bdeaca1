//! Multi-head latent attention, as DeepSeek's configurations and checkpoints spell it.

use super::Family;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, Part};
use crate::rope::{rope, scaling};
use pellucid_engine::architecture::{Attention, Latent, Norm, RopeStyle};

/// Puts latent attention in the place of every attention of a family, with its rotation and its names.
pub(super) fn latent(config: &Config, family: &mut Family, style: RopeStyle) -> Result<()> {
    let latent = Latent {
        query_rank: config.size_maybe("q_lora_rank")?,
        kv_rank: config.size("kv_lora_rank")?,
        rotated: config.size("qk_rope_head_dim")?,
        // The class's own default, whatever the blocks have.
        norm: Norm::rms(1e-6),
        bias: config.flag_or("attention_bias", false)?,
        query_scale: None,
        kv_scale: None,
    };
    let (still, value_dim) = (config.size("qk_nope_head_dim")?, config.size("v_head_dim")?);
    if still == 0 {
        return Err(config.bad("qk_nope_head_dim", "is 0, which leaves no key to compress"));
    }
    let sharper = yarn_magnitude(config)?;
    family.each_attention(|a| {
        let plain = Attention::plain(a.heads, a.heads, still + latent.rotated);
        *a = Attention {
            value_dim,
            latent: Some(latent),
            out_bias: latent.bias,
            rope: Some(0),
            scale: plain.scale * sharper * sharper,
            ..plain
        };
    });
    family.architecture.ropes = vec![rope(config, latent.rotated, style)?];
    family.names = latent_names(std::mem::take(&mut family.names), latent, still, value_dim);
    Ok(())
}

/// Neighbouring coordinates rotate unless `rope_interleave` says otherwise.
pub(super) fn interleaved(config: &Config) -> Result<RopeStyle> {
    Ok(if config.flag_or("rope_interleave", true)? { RopeStyle::Pairs } else { RopeStyle::Halves })
}

/// The names: keys' compressed and rotated parts are stored as one, keys and values as one, head by head.
fn latent_names(names: Names, latent: Latent, still: usize, value_dim: usize) -> Names {
    let down = latent.kv_rank + latent.rotated;
    let (kv_down, kv) = ("layers.{l}.self_attn.kv_a_proj_with_mqa", "layers.{l}.self_attn.kv_b_proj");
    let query = if latent.query_rank.is_some() { "q_b_proj" } else { "q_proj" };
    names
        .without(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with(&[
            ("layers.{l}.attn.q", format!("layers.{{l}}.self_attn.{query}")),
            ("layers.{l}.attn.q_down", "layers.{l}.self_attn.q_a_proj".into()),
            ("layers.{l}.attn.q_down_norm", "layers.{l}.self_attn.q_a_layernorm".into()),
            ("layers.{l}.attn.kv_down_norm", "layers.{l}.self_attn.kv_a_layernorm".into()),
        ])
        .with_part("layers.{l}.attn.kv_down", kv_down, Part::rows(0, down), false)
        .with_part("layers.{l}.attn.k_rotated", kv_down, Part::rows(latent.kv_rank, down), false)
        .with_part("layers.{l}.attn.k", kv, Part::grouped(0, still, still + value_dim), false)
        .with_part("layers.{l}.attn.v", kv, Part::grouped(still, value_dim, still + value_dim), false)
}

/// What a stretched rotation multiplies queries and keys by, where it says so for all dimensions.
fn yarn_magnitude(config: &Config) -> Result<f32> {
    let Some(scaling) = scaling(config) else { return Ok(1.0) };
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
