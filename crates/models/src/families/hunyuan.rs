//! HunYuan, dense and MoE: QK norm after the rotary embedding.

use super::Family;
use super::experts::{Mixture, set_qk_norm_per_head, shared_names};
use super::llama::llama_like;
use crate::config::Config;
use crate::error::Result;
use crate::rope::{build_rope, rope, rope_scaling};
use pellucid_engine::architecture::{Rope, RopeStyle, Routing};
use serde_json::json;

/// HunYuan with dense MLPs.
pub(super) fn hunyuan_v1_dense(config: &Config) -> Result<Family> {
    hunyuan(config)
}

/// HunYuan with routed experts and a shared one.
pub(super) fn hunyuan_v1_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(1))),
        ("moe_topk", config.get("num_experts_per_tok").cloned().unwrap_or(json!(1))),
    ]);
    let mut family = hunyuan(config)?;
    let width = config.size("intermediate_size")?;
    // An integer, or a list with one per layer.
    let by_layer = config.sizes("moe_topk").ok().filter(|list| !list.is_empty());
    let first = by_layer.as_ref().and_then(|list| list.first().copied());
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: first.map_or_else(|| config.size("moe_topk"), Ok)?,
        width,
        routing: Routing::softmax(true),
        shared_width: width,
    };
    mixture.apply_to_all_layers(&mut family);
    if let Some(list) = by_layer {
        if list.len() != family.architecture.layers.len() {
            return Err(config.bad("moe_topk", "does not have one entry per layer"));
        }
        let mut list = list.into_iter();
        family.each_experts(|experts| experts.top_k = list.next().unwrap_or(experts.top_k));
    }
    family.names =
        shared_names(family.names, &["mlp.shared_mlp"]).replacing("layers.{l}.mlp.router", "layers.{l}.mlp.gate.wg");
    Ok(family)
}

/// Common part.
fn hunyuan(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("rms_norm_eps", json!(1e-5))]);
    let mut family = llama_like(config)?;
    family.set_attention_bias(config.flag_or("attention_bias", false)?);
    set_qk_norm_per_head(&mut family);
    family.each_attention(|a| a.qk_norm_after_rope = true);
    family.architecture.ropes = vec![alpha_rope(config, family.head_dim())?];
    family.architecture.context = config.size_maybe("max_position_embeddings")?;
    family.names = family
        .names
        .replacing("layers.{l}.attn.q_norm", "layers.{l}.self_attn.query_layernorm")
        .replacing("layers.{l}.attn.k_norm", "layers.{l}.self_attn.key_layernorm");
    Ok(family)
}

/// HunYuan's rotary embedding: dynamic scaling with `alpha` means a larger base, independent of the
/// length.
fn alpha_rope(config: &Config, head_dim: usize) -> Result<Rope> {
    let scaling = rope_scaling(config);
    let kind = scaling.as_ref().and_then(|s| s.text("rope_type").or_else(|| s.text("type")));
    let alpha = scaling.as_ref().map(|s| s.number_maybe("alpha")).transpose()?.flatten();
    let (Some(scaling), Some("dynamic"), Some(alpha)) = (&scaling, kind, alpha.filter(|&alpha| alpha != 0.0)) else {
        return rope(config, head_dim, RopeStyle::Halves);
    };
    let base = match scaling.number_maybe("rope_theta")? {
        Some(base) => base,
        None => config.number_or("rope_theta", 10_000.0)?,
    };
    let dim = head_dim as f32;
    build_rope(config, None, base * alpha.powf(dim / (dim - 2.0)), head_dim, 1.0, RopeStyle::Halves)
}
