//! MoE families with DeepSeek V3's routing (sigmoid scores, correction bias) and ordinary
//! attention.

use super::Family;
use super::experts::{
    Mixture, correction_names, ignore_mtp_layers, set_qk_norm_per_head, shared_names, sigmoid_routing, sparse_layers,
};
use super::llama::{llama_like, set_sliding_window};
use super::llama_variants::post_norms;
use super::olmo::set_qk_norm_all_heads;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::rope::{rope_parameters_or, ropes_by_layer_type};
use pellucid_engine::architecture::{Activation, Attention, AttentionGate, ExpertWeights, Routing};
use serde_json::{Value, json};

/// GLM 4.5: partial rotary; experts in the upper layers.
pub(super) fn glm4_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("partial_rotary_factor", json!(0.5)),
        ("n_routed_experts", json!(128)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1408)),
        ("n_shared_experts", json!(1)),
        ("first_k_dense_replace", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each_attention(|a| a.qkv_bias = bias);
    if config.flag_or("use_qk_norm", false)? {
        set_qk_norm_per_head(&mut family);
    }
    set_upper_experts(config, &mut family)?;
    ignore_mtp_layers(config, &mut family)?;
    Ok(family)
}

/// dots.llm1: QK norm, sliding window in some layers, experts in the upper layers.
pub(super) fn dots1(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(32)),
        ("norm_topk_prob", json!(false)),
        ("n_shared_experts", json!(0)),
        ("moe_intermediate_size", json!(1408)),
        ("sliding_window", json!(4096)),
        ("first_k_dense_replace", json!(0)),
    ]);
    let mut family = llama_like(config)?;
    let (bias, first) = (config.flag_or("attention_bias", false)?, config.size_or("max_window_layers", 62)?);
    family.set_attention_bias(bias);
    set_qk_norm_per_head(&mut family);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| layer >= first)?;
    set_upper_experts(config, &mut family)?;
    Ok(family)
}

/// Solar Open: experts in every layer.
pub(super) fn solar_open(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("n_routed_experts", json!(128)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1280)),
        ("n_shared_experts", json!(1)),
    ]);
    // No layer has a dense MLP, even if the configuration has its width.
    let config = &config
        .with("intermediate_size", config.size("moe_intermediate_size")?.into())
        .with("first_k_dense_replace", 0.into());
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each_attention(|a| a.qkv_bias = bias);
    set_upper_experts(config, &mut family)?;
    Ok(family)
}

/// EXAONE MoE: QK norm. If some layers have a sliding window, only those have rotary positions.
pub(super) fn exaone_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(32)),
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(4096)),
        ("num_experts", json!(64)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1024)),
        ("num_shared_experts", json!(1)),
        ("routed_scaling_factor", json!(2.5)),
        ("first_k_dense_replace", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    set_qk_norm_per_head(&mut family);
    let (window, pattern) = (config.size_maybe("sliding_window")?, config.size_or("sliding_window_pattern", 4)?.max(1));
    set_sliding_window(config, &mut family, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    family.each_attention(|a| a.rope = a.rope.filter(|_| window.is_none() || a.window.is_some()));
    let config = &config
        .with("n_routed_experts", config.size("num_experts")?.into())
        .with("n_shared_experts", config.size("num_shared_experts")?.into());
    set_upper_experts(config, &mut family)?;
    family.names = correction_names(family.names, &["mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"]);
    family.names.ignored_prefixes.push("mtp");
    Ok(family)
}

/// MiMo V2 Flash: values narrower than keys, and scaled; sliding-window layers have attention sinks
/// and twice as many KV heads.
pub(super) fn mimo_v2_flash(config: &Config) -> Result<Family> {
    let kind = |base: f32| json!({"rope_theta": base, "partial_rotary_factor": 0.334});
    let config = &config.with_defaults([
        ("head_dim", json!(192)),
        ("v_head_dim", json!(128)),
        ("num_key_value_heads", json!(4)),
        ("rms_norm_eps", json!(1e-5)),
        ("attention_value_scale", json!(0.707)),
        ("sliding_window", json!(129)),
        ("n_routed_experts", json!(256)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(2048)),
        ("n_shared_experts", json!(0)),
        ("first_k_dense_replace", json!(1)),
    ]);
    let rotations = json!({"full_attention": kind(5_000_000.0), "sliding_attention": kind(10_000.0)});
    let config = &with_partial_rotary_default(&rope_parameters_or(config, rotations), 0.334);
    let mut family = llama_like(config)?;
    let window = match config.size_maybe("sliding_window_size")? {
        Some(before) => Some(before + 1),
        None => config.size_maybe("sliding_window")?,
    };
    set_sliding_window(config, &mut family, window, |layer| layer != 0 && !(layer + 1).is_multiple_of(6))?;
    let (bias, value_dim) = (config.flag_or("attention_bias", false)?, config.size("v_head_dim")?);
    let value_scale = config.number_maybe("attention_value_scale")?;
    family.architecture.ropes = ropes_by_layer_type(config, family.head_dim())?;
    family.each_attention(|a| {
        (a.qkv_bias, a.value_dim, a.value_scale) = (bias, value_dim, value_scale);
        a.sinks = a.window.is_some();
        a.rope = Some(usize::from(a.sinks));
        a.kv_heads *= if a.sinks { 2 } else { 1 };
    });
    set_upper_experts(config, &mut family)?;
    family.names = family.names.with_bare(&[
        ("layers.{l}.attn.sinks", "layers.{l}.self_attn.attention_sink_bias"),
        ("layers.{l}.attn.sinks", "layers.{l}.self_attn.sinks"),
    ]);
    family.names.ignored_prefixes.push("model.mtp.");
    Ok(family)
}

/// MiniMax M2: QK norm over all heads, partial rotary, experts in every layer.
pub(super) fn minimax_m2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rope_theta", json!(5_000_000.0)),
        ("num_local_experts", config.get("num_experts").cloned().unwrap_or(json!(256))),
        ("num_experts_per_tok", json!(8)),
    ]);
    let config = &match config.number_maybe("rotary_dim")? {
        Some(dim) => {
            let fraction = dim / config.number("head_dim")?;
            config.with_defaults([("partial_rotary_factor", json!(fraction))])
        }
        None => config.clone(),
    };
    let mut family = llama_like(config)?;
    set_qk_norm_all_heads(&mut family);
    let routing = sigmoid_routing(&config.with("n_group", 1.into()), true, 1.0)?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing { weights: ExpertWeights::SUM_NORMALIZED, ..routing },
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    let corrections = ["block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"];
    family.names = correction_names(mixture.mixtral_names(family.names), &corrections);
    Ok(family)
}

/// AFMoE: gated attention, pre- and post-norms, QK norm; only sliding-window layers have rotary
/// positions.
pub(super) fn afmoe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(1024)),
        ("num_experts", json!(64)),
        ("num_experts_per_tok", json!(6)),
        ("moe_intermediate_size", json!(1408)),
        ("num_shared_experts", json!(2)),
        ("num_dense_layers", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.set_attention_bias(bias);
    set_qk_norm_per_head(&mut family);
    let pattern = config.size_or("global_attn_every_n_layers", 4)?.max(1);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| {
        !(layer + 1).is_multiple_of(pattern)
    })?;
    family.each_attention(|a| {
        a.rope = a.rope.filter(|_| a.window.is_some());
        a.gate = Some(AttentionGate { per_head: false, activation: Activation::Sigmoid, bias: false });
    });
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm, layer.mlp_norm));
    if config.flag_or("mup_enabled", false)? {
        family.architecture.embedding.scale = Some((family.architecture.width as f32).sqrt());
    }
    let (width, scale) = (config.size("moe_intermediate_size")?, config.number_or("route_scale", 1.0)?);
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing: sigmoid_routing(&config.with("n_group", 1.into()), true, scale)?,
        shared_width: width * config.size("num_shared_experts")?,
    };
    let dense = config.size("num_dense_layers")?;
    let sparse: Vec<bool> = (0..family.architecture.layers.len()).map(|layer| layer >= dense).collect();
    mixture.apply_to(&mut family, &sparse);
    family.names = correction_names(family.names, &["mlp.expert_bias"])
        .replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router.gate")
        .replacing("layers.{l}.mlp.norm", "layers.{l}.pre_mlp_layernorm")
        .with(&post_norms("post_attention_layernorm", "post_mlp_layernorm"))
        .with(&[("layers.{l}.attn.gate", "layers.{l}.self_attn.gate_proj")]);
    Ok(family)
}

/// Hunyuan 3: QK norm, experts in all layers but the first.
pub(super) fn hy_v3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(11_158_840.0)),
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(192))),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(1536)),
        ("num_shared_experts", json!(1)),
    ]);
    let mut family = llama_like(config)?;
    let (attention, mlp) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    family.set_attention_bias(attention);
    family.each_dense(|dense| *dense = dense.with_bias(mlp));
    set_qk_norm_per_head(&mut family);
    let (width, scale) = (config.size("moe_intermediate_size")?, config.number_or("router_scaling_factor", 2.826)?);
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing: sigmoid_routing(&config.with("n_group", 1.into()), true, scale)?,
        shared_width: width * config.size("num_shared_experts")?,
    };
    let sparse = sparse_layers(config, &family, |layer| layer > 0)?;
    mixture.apply_to(&mut family, &sparse);
    let names = correction_names(family.names, &["mlp.expert_bias", "mlp.e_score_correction_bias"]);
    family.names = shared_names(names, &["mlp.shared_mlp", "mlp.shared_experts"])
        .replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router.gate")
        .with(&[("layers.{l}.mlp.router", "layers.{l}.mlp.gate")]);
    ignore_mtp_layers(config, &mut family)?;
    Ok(family)
}

/// Laguna: softplus gates on attention, number of heads per layer, rotary by layer type,
/// soft-capped router logits.
pub(super) fn laguna(config: &Config) -> Result<Family> {
    let kind = |base: f32, part: f32| json!({"rope_theta": base, "partial_rotary_factor": part});
    let rotations = json!({"full_attention": kind(500_000.0, 0.5), "sliding_attention": kind(10_000.0, 1.0)});
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("sliding_window", json!(512)),
        ("num_experts", json!(256)),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(512)),
        ("shared_expert_intermediate_size", json!(512)),
    ]);
    let config = &rope_parameters_or(config, rotations);
    if config.flag_or("moe_apply_router_weight_on_input", false)? {
        return Err(Error::unsupported(
            "`moe_apply_router_weight_on_input` is set, which no implementation of `laguna` computes",
            "use a model without it",
        ));
    }
    let mut family = llama_like(config)?;
    let (bias, heads) = (config.flag_or("attention_bias", false)?, config.sizes("num_attention_heads_per_layer")?);
    family.set_attention_bias(bias);
    set_qk_norm_per_head(&mut family);
    if !heads.is_empty() && heads.len() != family.architecture.layers.len() {
        return Err(config.bad("num_attention_heads_per_layer", "does not have one entry per layer"));
    }
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |_| false)?;
    family.architecture.ropes = ropes_by_layer_type(config, family.head_dim())?;
    let per_head = match config.get("gating") {
        None | Some(Value::Bool(true)) => true,
        Some(Value::String(name)) => name == "per-head",
        Some(_) => false,
    };
    let gate = AttentionGate { per_head, activation: Activation::Softplus, bias: false };
    let mut heads = heads.into_iter();
    family.each_attention(|a| {
        let (heads, rope) = (heads.next().unwrap_or(a.heads), usize::from(a.window.is_some()));
        *a = Attention { heads, gate: Some(gate), rope: Some(rope), ..a.clone() };
    });
    let soft_cap = config.number_or("moe_router_logit_softcapping", 0.0)?;
    let scale = config.number_or("moe_routed_scaling_factor", 1.0)?;
    let routing = sigmoid_routing(&config.with("n_group", 1.into()), true, scale)?;
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("moe_intermediate_size")?,
        routing: Routing {
            weights: ExpertWeights::SUM_NORMALIZED,
            soft_cap: (soft_cap > 0.0).then_some(soft_cap),
            ..routing
        },
        shared_width: config.size("shared_expert_intermediate_size")?,
    };
    let sparse = sparse_layers(config, &family, |layer| layer > 0)?;
    mixture.apply_to(&mut family, &sparse);
    let corrections = ["mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"];
    let names = correction_names(family.names, &corrections);
    family.names = shared_names(names, &["mlp.shared_expert", "mlp.shared_experts"])
        .with(&[("layers.{l}.attn.gate", "layers.{l}.self_attn.g_proj")]);
    Ok(family)
}

/// Sets DeepSeek V3's experts in the layers from `first_k_dense_replace` on, or by
/// `mlp_layer_types`.
fn set_upper_experts(config: &Config, family: &mut Family) -> Result<()> {
    let (normalize, scale) = (config.flag_or("norm_topk_prob", true)?, config.number_or("routed_scaling_factor", 1.0)?);
    let width = config.size("moe_intermediate_size")?;
    let mixture = Mixture {
        count: config.size("n_routed_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing: sigmoid_routing(config, normalize, scale)?,
        shared_width: width * config.size_or("n_shared_experts", 0)?,
    };
    let dense = config.size("first_k_dense_replace")?;
    let sparse = sparse_layers(config, family, |layer| layer >= dense)?;
    mixture.apply_to(family, &sparse);
    let names = std::mem::take(&mut family.names);
    family.names = correction_names(names, &["mlp.gate.e_score_correction_bias"]);
    Ok(())
}

/// Returns the configuration with a default `partial_rotary_factor` for each layer type.
fn with_partial_rotary_default(config: &Config, fraction: f32) -> Config {
    let Some(mut parameters) = config.get("rope_parameters").cloned() else { return config.clone() };
    for kind in parameters.as_object_mut().into_iter().flat_map(|kinds| kinds.values_mut()) {
        if let Some(kind) = kind.as_object_mut() {
            kind.entry("partial_rotary_factor").or_insert(json!(fraction));
        }
    }
    config.with("rope_parameters", parameters)
}
