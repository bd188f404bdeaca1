//! DeepSeek and its relations: latent attention, and experts beside a shared one.

use super::Family;
use super::experts::{
    Mixture, correction_names, groups, ignore_guessing_layers, named, sigmoid_routing, sparse_layers,
};
use super::latent::{interleaved, latent};
use super::llama::{llama, llama_like};
use super::relatives::post_norms;
use crate::config::Config;
use crate::error::Result;
use pellucid_engine::architecture::{Mlp, RopeStyle, Routing};
use serde_json::json;

/// DeepSeek V2: softmax routing, perhaps within the groups of the best experts.
pub(super) fn deepseek_v2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(1536)),
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("n_routed_experts", json!(64)),
        ("n_shared_experts", json!(2)),
        ("moe_intermediate_size", json!(1407)),
        ("first_k_dense_replace", json!(0)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("mlp_bias", false)?;
    family.each_dense(|dense| *dense = dense.with_bias(bias));
    latent(config, &mut family, RopeStyle::Pairs)?;
    let method = config.text("topk_method").unwrap_or("greedy");
    let limited = named(config, "topk_method", method, &["greedy", "group_limited_greedy"])? == 1;
    let routing = Routing {
        groups: if limited { groups(config, false)? } else { None },
        scale: config.number_or("routed_scaling_factor", 1.0)?,
        ..Routing::softmax(false)
    };
    put_experts(config, &mut family, routing)?;
    Ok(family)
}

/// DeepSeek V3: sigmoid routing with a correction, within the groups of the best pairs of experts.
pub(super) fn deepseek_v3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(1536)),
        ("n_group", json!(8)),
        ("topk_group", json!(4)),
        ("num_experts_per_tok", json!(8)),
        ("n_routed_experts", json!(256)),
        ("moe_intermediate_size", json!(2048)),
        ("routed_scaling_factor", json!(2.5)),
        ("first_k_dense_replace", json!(3)),
    ]);
    sigmoid(config)
}

/// GLM 4 MoE Lite: DeepSeek V3 of other sizes.
pub(super) fn glm4_moe_lite(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(768)),
        ("qk_nope_head_dim", json!(192)),
        ("v_head_dim", json!(256)),
        ("num_experts_per_tok", json!(4)),
        ("n_routed_experts", json!(64)),
        ("moe_intermediate_size", json!(1536)),
        ("routed_scaling_factor", json!(1.8)),
        ("first_k_dense_replace", json!(1)),
        ("rms_norm_eps", json!(1e-5)),
    ]);
    sigmoid(config)
}

/// A.X K1: DeepSeek V3 with a norm after the experts.
pub(super) fn axk1(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(1536)),
        ("n_group", json!(8)),
        ("topk_group", json!(4)),
        ("num_experts_per_tok", json!(8)),
        ("n_routed_experts", json!(192)),
        ("moe_intermediate_size", json!(2048)),
        ("routed_scaling_factor", json!(2.5)),
        ("first_k_dense_replace", json!(1)),
    ]);
    let mut family = sigmoid(config)?;
    family.each(|layer| {
        if let Some(Mlp::Experts(_)) = layer.mlp {
            layer.mlp_post_norm = layer.mlp_norm;
        }
    });
    // Hugging Face's module of the experts ends with the norm, so it is not the site.
    family.architecture.modules.mlp = None;
    let [_, stored] = post_norms("post_attention_layernorm", "post_mlp_layernorm");
    let [_, inside] = post_norms("post_attention_layernorm", "mlp.post_mlp_layernorm");
    family.names = family.names.with(&[stored, inside]);
    Ok(family)
}

/// What V3 and its relations share.
fn sigmoid(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("n_shared_experts", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    latent(config, &mut family, interleaved(config)?)?;
    let (normalise, scale) = (config.flag_or("norm_topk_prob", true)?, config.number("routed_scaling_factor")?);
    put_experts(config, &mut family, sigmoid_routing(config, normalise, scale)?)?;
    family.names = correction_names(family.names, &["mlp.gate.e_score_correction_bias"]);
    ignore_guessing_layers(config, &mut family)?;
    Ok(family)
}

/// Experts in the upper layers, or where `mlp_layer_types` says.
pub(super) fn put_experts(config: &Config, family: &mut Family, routing: Routing) -> Result<()> {
    let width = config.size("moe_intermediate_size")?;
    let mixture = Mixture {
        count: config.size("n_routed_experts")?,
        chosen: config.size("num_experts_per_tok")?,
        width,
        routing,
        shared: width * config.size("n_shared_experts")?,
    };
    let (first, every) = (config.size("first_k_dense_replace")?, config.size_or("moe_layer_freq", 1)?.max(1));
    let sparse = sparse_layers(config, family, |layer| layer >= first && layer.is_multiple_of(every))?;
    mixture.put(family, &sparse);
    Ok(())
}

/// Youtu: DeepSeek V3's attention with dense MLPs.
pub(super) fn youtu(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(1536)),
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("tie_word_embeddings", json!(true)),
    ]);
    let mut family = llama_like(config)?;
    latent(config, &mut family, interleaved(config)?)?;
    Ok(family)
}

/// MiniCPM 3: latent attention, multipliers on embeddings, sublayers and logits.
pub(super) fn minicpm3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("q_lora_rank", json!(768)),
        ("kv_lora_rank", json!(256)),
        ("qk_nope_head_dim", json!(64)),
        ("qk_rope_head_dim", json!(32)),
        ("rms_norm_eps", json!(1e-5)),
        ("max_position_embeddings", json!(32_768)),
        ("tie_word_embeddings", json!(true)),
        ("mlp_bias", json!(false)),
        ("scale_emb", json!(12.0)),
        ("scale_depth", json!(1.4)),
        ("dim_model_base", json!(256)),
    ]);
    let head_dim = config.size("hidden_size")? / config.size("num_attention_heads")?.max(1);
    let config = &config
        .with("v_head_dim", config.size_or("v_head_dim", head_dim)?.into())
        .with("head_dim", config.size("qk_rope_head_dim")?.into());
    let mut family = llama(config)?;
    latent(config, &mut family, RopeStyle::Halves)?;
    let depth = family.architecture.layers.len() as f32;
    let sublayers = config.number_or("scale_depth", depth.sqrt())? / depth.sqrt();
    family.each(|layer| (layer.attn_multiplier, layer.mlp_multiplier) = (Some(sublayers), Some(sublayers)));
    family.architecture.embedding.scale = Some(config.number_or("scale_emb", 1.0)?);
    let width = config.size("hidden_size")?;
    let base = config.size_or("dim_model_base", width)?;
    family.architecture.head.scale = Some(base as f32 / width as f32);
    // The embedding module returns its rows already scaled.
    family.architecture.modules.embedding = None;
    Ok(family)
}
