//! DeepSeek V2 and V3 and derived families: multi-head latent attention (MLA), shared and routed
//! experts.

use super::Family;
use super::experts::{
    Mixture, correction_names, groups, ignore_mtp_layers, parse_choice, sigmoid_routing, sparse_layers,
};
use super::latent::{mla_rope_style, set_latent_attention};
use super::llama::{llama, llama_like};
use super::llama_variants::post_norms;
use crate::config::Config;
use crate::error::Result;
use pellucid_engine::architecture::{Mlp, RopeStyle, Routing};
use serde_json::json;

/// DeepSeek V2: softmax routing, optionally limited to the best expert groups.
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
    set_latent_attention(config, &mut family, RopeStyle::Pairs)?;
    let method = config.text("topk_method").unwrap_or("greedy");
    let limited = parse_choice(config, "topk_method", method, &["greedy", "group_limited_greedy"])? == 1;
    let routing = Routing {
        groups: if limited { groups(config, false)? } else { None },
        scale: config.number_or("routed_scaling_factor", 1.0)?,
        ..Routing::softmax(false)
    };
    set_experts(config, &mut family, routing)?;
    Ok(family)
}

/// DeepSeek V3: sigmoid routing with a correction bias, limited to the expert groups with the
/// highest sum of their two best scores.
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
    deepseek_v3_like(config)
}

/// GLM 4 MoE Lite: DeepSeek V3 with other default sizes.
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
    deepseek_v3_like(config)
}

/// A.X K1: DeepSeek V3 with a post-norm in the layers with experts.
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
    let mut family = deepseek_v3_like(config)?;
    family.each(|layer| {
        if let Some(Mlp::Experts(_)) = layer.mlp {
            layer.mlp_post_norm = layer.mlp_norm;
        }
    });
    // Hugging Face's MLP module includes the norm, so its output is not the `mlp_out` site.
    family.architecture.modules.mlp = None;
    let [_, stored] = post_norms("post_attention_layernorm", "post_mlp_layernorm");
    let [_, inside] = post_norms("post_attention_layernorm", "mlp.post_mlp_layernorm");
    family.names = family.names.with(&[stored, inside]);
    Ok(family)
}

/// Common part of DeepSeek V3 and derived families.
fn deepseek_v3_like(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("kv_lora_rank", json!(512)),
        ("qk_nope_head_dim", json!(128)),
        ("qk_rope_head_dim", json!(64)),
        ("v_head_dim", json!(128)),
        ("n_shared_experts", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    set_latent_attention(config, &mut family, mla_rope_style(config)?)?;
    let (normalize, scale) = (config.flag_or("norm_topk_prob", true)?, config.number("routed_scaling_factor")?);
    set_experts(config, &mut family, sigmoid_routing(config, normalize, scale)?)?;
    family.names = correction_names(family.names, &["mlp.gate.e_score_correction_bias"]);
    ignore_mtp_layers(config, &mut family)?;
    Ok(family)
}

/// Sets experts in the layers from `first_k_dense_replace` on, or by `mlp_layer_types` if present.
pub(super) fn set_experts(config: &Config, family: &mut Family, routing: Routing) -> Result<()> {
    let width = config.size("moe_intermediate_size")?;
    let mixture = Mixture {
        count: config.size("n_routed_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing,
        shared_width: width * config.size("n_shared_experts")?,
    };
    let (first, every) = (config.size("first_k_dense_replace")?, config.size_or("moe_layer_freq", 1)?.max(1));
    let sparse = sparse_layers(config, family, |layer| layer >= first && layer.is_multiple_of(every))?;
    mixture.apply_to(family, &sparse);
    Ok(())
}

/// Youtu: DeepSeek V3's attention (MLA) with dense MLPs.
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
    set_latent_attention(config, &mut family, mla_rope_style(config)?)?;
    Ok(family)
}

/// MiniCPM 3: MLA; multipliers of the embedding, sublayer outputs and logits.
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
    set_latent_attention(config, &mut family, RopeStyle::Halves)?;
    let depth = family.architecture.layers.len() as f32;
    let sublayers = config.number_or("scale_depth", depth.sqrt())? / depth.sqrt();
    family.each(|layer| (layer.attn_multiplier, layer.mlp_multiplier) = (Some(sublayers), Some(sublayers)));
    family.architecture.embedding.scale = Some(config.number_or("scale_emb", 1.0)?);
    let width = config.size("hidden_size")?;
    let base = config.size_or("dim_model_base", width)?;
    family.architecture.head.scale = Some(base as f32 / width as f32);
    // The embedding module returns scaled rows, so it is not an alias of the `embed` site.
    family.architecture.modules.embedding = None;
    Ok(family)
}
