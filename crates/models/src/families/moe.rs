//! MoE families with softmax routing: Qwen 2 and 3 MoE, Mellum, ERNIE 4.5 MoE, Aria, Cohere 2 MoE;
//! and Phi-3.5-MoE with its sparse mixer.

use super::Family;
use super::experts::{
    Mixture, NameSuffix, correction_names, parse_choice, require_value, set_qk_norm_per_head, shared_names,
    sparse_layers, without_experts,
};
use super::llama::{llama, llama_like, mistral_like, qwen2, qwen3_like, set_sliding_window};
use super::llama_variants::{cohere, ernie4_5};
use crate::config::Config;
use crate::error::Result;
use crate::names::Layout;
use crate::rope::{rope_parameters_or, ropes_by_layer_type};
use pellucid_engine::architecture::{ExpertWeights, LongRope, Norm, Routing, Scores};
use serde_json::json;

/// Qwen 2 MoE: experts in some or all layers, with a gated shared expert.
pub(super) fn qwen2_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(16)),
        ("num_experts", json!(60)),
        ("num_experts_per_tok", json!(4)),
        ("moe_intermediate_size", json!(1408)),
        ("shared_expert_intermediate_size", json!(5632)),
        ("sliding_window", json!(4096)),
    ]);
    let mut family = qwen2(config)?;
    let bias = config.flag_or("qkv_bias", true)?;
    family.each_attention(|a| a.qkv_bias = bias);
    let (window, last) = (config.size_maybe("sliding_window")?, config.size_or("max_window_layers", 28)?);
    let window = window.filter(|&window| window > 0);
    let window = if config.flag_or("use_sliding_window", false)? { window } else { None };
    set_sliding_window(config, &mut family, window, |layer| layer.is_multiple_of(2) && layer < last)?;
    set_gated_shared_experts(config, &mut family)?;
    Ok(family)
}

/// Sets Qwen's routed experts and the gated shared expert.
pub(super) fn set_gated_shared_experts(config: &Config, family: &mut Family) -> Result<()> {
    set_stepped_experts(config, family, config.size("shared_expert_intermediate_size")?)?;
    family.each_experts(|experts| experts.shared.iter_mut().for_each(|shared| shared.gated = true));
    family.names = shared_names(std::mem::take(&mut family.names), &["mlp.shared_expert"])
        .with(&[("layers.{l}.mlp.shared_gate", "layers.{l}.mlp.shared_expert_gate")]);
    Ok(())
}

/// Qwen 3 MoE: experts in some or all layers; sliding window in all layers or none.
pub(super) fn qwen3_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(4)),
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(128))),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(768)),
        ("sliding_window", json!(4096)),
    ]);
    let mut family = qwen3_like(config)?;
    let window = if config.flag_or("use_sliding_window", false)? { config.size_maybe("sliding_window")? } else { None };
    family.each_attention(|a| a.window = window);
    set_stepped_experts(config, &mut family, 0)?;
    Ok(family)
}

/// Mellum: Qwen 3 MoE with sliding windows and a rotary base by layer type.
pub(super) fn mellum(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(4)),
        ("num_experts", config.get("num_local_experts").cloned().unwrap_or(json!(64))),
        ("num_experts_per_tok", json!(8)),
        ("moe_intermediate_size", json!(896)),
        ("norm_topk_prob", json!(true)),
        ("sliding_window", json!(1024)),
    ]);
    let rotations = json!({"full_attention": {"rope_theta": 500_000.0}, "sliding_attention": {"rope_theta": 10_000.0}});
    let config = &rope_parameters_or(config, rotations);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.set_attention_bias(bias);
    set_qk_norm_per_head(&mut family);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |_| false)?;
    family.architecture.ropes = ropes_by_layer_type(config, family.head_dim())?;
    family.each_attention(|a| a.rope = Some(usize::from(a.window.is_some())));
    let sparse = sparse_layers(config, &family, |_| true)?;
    softmax_mixture(config, 0)?.apply_to(&mut family, &sparse);
    family.names.ignored_prefixes.push("mtp.");
    Ok(family)
}

/// ERNIE 4.5 MoE: experts in a range of layers, selected with a correction bias.
pub(super) fn ernie4_5_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(null)),
        ("num_key_value_heads", json!(4)),
        ("moe_num_experts", json!(64)),
        ("moe_k", json!(6)),
        ("moe_intermediate_size", json!(1536)),
        ("moe_num_shared_experts", json!(2)),
    ]);
    let mut family = ernie4_5(config)?;
    family.architecture.head.bias = config.flag_or("use_bias", false)?;
    let least = config.number_or("moe_norm_min", 1e-12)?;
    let weights = ExpertWeights::SumNormalized { eps: 0.0, min_divisor: least };
    let width = config.size("moe_intermediate_size")?;
    let mixture = Mixture {
        count: config.size("moe_num_experts")?,
        top_k: config.size("moe_k")?,
        width,
        routing: Routing { correction: true, ..Routing::new(Scores::Softmax, weights) },
        shared_width: width * config.size("moe_num_shared_experts")?,
    };
    // -1 means the last layer.
    let end =
        config.number_maybe("moe_layer_end_index")?.filter(|&end| end >= 0.0).map_or(usize::MAX, |end| end as usize);
    let (start, step) = (config.size_or("moe_layer_start_index", 1)?, config.size_or("moe_layer_interval", 1)?.max(1));
    let is_sparse = |layer: usize| (layer + 1).is_multiple_of(step) && (start..=end).contains(&layer);
    let sparse: Vec<bool> = (0..family.architecture.layers.len()).map(is_sparse).collect();
    mixture.apply_to(&mut family, &sparse);
    let corrections = ["mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"];
    family.names = correction_names(family.names, &corrections);
    family.names.ignored_prefixes.push("model.mtp_");
    Ok(family)
}

/// Phi-3.5-MoE: layer norms; the sparse mixer selects its two experts one after the other.
pub(super) fn phimoe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("num_local_experts", json!(16)),
        ("num_experts_per_tok", json!(2)),
        ("router_jitter_noise", json!(0.01)),
    ]);
    let mut family = mistral_like(config)?;
    let (norm, bias) = (Norm::layer(config.number("rms_norm_eps")?), config.flag_or("attention_bias", false)?);
    family.set_norms(norm);
    family.set_attention_bias(bias);
    family.architecture.head.bias = config.flag_or("lm_head_bias", false)?;
    set_rope_amplitudes(config, &mut family)?;
    require_value(config, "num_experts_per_tok", 2.0)?;
    let scores = Scores::SparseMixer { tolerance: config.number("router_jitter_noise")? };
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: 2,
        width: config.size("intermediate_size")?,
        routing: Routing::new(scores, ExpertWeights::Scores),
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    family.names = mixture.mixtral_names(family.names).with(&[("layers.{l}.mlp.router", "layers.{l}.mlp.router")]);
    Ok(family)
}

/// Phi-3.5-MoE's LongRoPE: long rows keep the frequencies and change the amplitude.
fn set_rope_amplitudes(config: &Config, family: &mut Family) -> Result<()> {
    let Some(scaling) = config.part("rope_parameters").or_else(|| config.part("rope_scaling")) else { return Ok(()) };
    for rope in &mut family.architecture.ropes {
        if let Some(LongRope::Beyond { frequencies, amplitude, .. }) = &mut rope.long {
            frequencies.clone_from(&rope.frequencies);
            (rope.amplitude, *amplitude) = (scaling.number("short_mscale")?, scaling.number("long_mscale")?);
        }
    }
    Ok(())
}

/// Aria, language model: experts weighted by a softmax over the top k, stored as `[experts, inputs,
/// outputs]`, and shared experts.
pub(super) fn aria_text(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("moe_num_experts", json!(8)),
        ("moe_topk", json!(2)),
        ("moe_num_shared_experts", json!(2)),
    ]);
    let mut family = llama(config)?;
    let width = config.size("intermediate_size")?;
    let mixture = Mixture {
        count: config.size("moe_num_experts")?,
        top_k: config.size("moe_topk")?,
        width,
        routing: Routing::new(Scores::Raw, ExpertWeights::Softmax),
        shared_width: width * config.size("moe_num_shared_experts")?,
    };
    mixture.apply_to_all_layers(&mut family);
    let names = without_experts(family.names).replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router");
    let at = "layers.{l}.mlp.experts";
    let names =
        mixture.fused_names(names, &format!("{at}.fc1"), &format!("{at}.fc2"), Layout::InOut, NameSuffix::Weight);
    family.names = mixture.fused_names(
        names,
        &format!("{at}.gate_up_proj"),
        &format!("{at}.down_proj"),
        Layout::InOut,
        NameSuffix::None,
    );
    Ok(family)
}

/// Cohere 2 MoE: parallel blocks; experts weighted by a softmax or sigmoids of the top k.
pub(super) fn cohere2_moe(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("rope_theta", json!(10_000.0)),
        ("num_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
        ("sliding_window", json!(4096)),
        ("first_k_dense_replace", json!(0)),
    ]);
    let mut family = cohere(&config.with("use_qk_norm", false.into()))?;
    if let Some(eps) = config.number_maybe("rms_norm_eps")? {
        family.set_norms(Norm::rms(eps));
    }
    let dense = config.size("first_k_dense_replace")?;
    let pattern = |key: &str, default: usize| -> Result<usize> { Ok(config.size_or(key, default)?.max(1)) };
    let (below, above) = (pattern("prefix_dense_sliding_window_pattern", 1)?, pattern("sliding_window_pattern", 4)?);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| {
        match layer.checked_sub(dense) {
            Some(layer) => !(layer + 1).is_multiple_of(above),
            None => !(layer + 1).is_multiple_of(below),
        }
    })?;
    let sparse = sparse_layers(config, &family, |layer| layer >= dense)?;
    let mut dense_layers = sparse.iter().map(|sparse| !sparse);
    family.each_attention(|a| {
        let dense_rotates = dense_layers.next().unwrap_or(false) && below == 1;
        a.rope = a.rope.filter(|_| a.window.is_some() || dense_rotates);
    });

    let selection = config.text("expert_selection_fn").unwrap_or("softmax");
    let weights = match parse_choice(config, "expert_selection_fn", selection, &["softmax", "sigmoid"])? {
        0 => ExpertWeights::Softmax,
        _ => ExpertWeights::Sigmoid { normalized: config.flag_or("norm_topk_prob", true)? },
    };
    let (width, shared) = (config.size("intermediate_size")?, config.size_or("num_shared_experts", 0)?);
    let mixture = Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing: Routing::new(Scores::Raw, weights),
        shared_width: width * shared,
    };
    mixture.apply_to(&mut family, &sparse);
    let combination = config.text("shared_expert_combination_strategy").unwrap_or("average");
    let averaged = parse_choice(config, "shared_expert_combination_strategy", combination, &["sum", "average"])? == 1;
    family.each_experts(|experts| experts.scale = (averaged && shared > 0).then_some(0.5));
    let prefix = config.size_or("prefix_dense_intermediate_size", width)?;
    family.each_dense(|dense| dense.width = prefix);
    Ok(family)
}

/// Reads a mixture weighted by a softmax over all experts.
fn softmax_mixture(config: &Config, shared: usize) -> Result<Mixture> {
    Ok(Mixture {
        count: config.size("num_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("moe_intermediate_size")?,
        routing: Routing::softmax(config.flag_or("norm_topk_prob", false)?),
        shared_width: shared,
    })
}

/// Qwen's rule: experts in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`.
fn set_stepped_experts(config: &Config, family: &mut Family, shared: usize) -> Result<()> {
    let (step, dense) = (config.size_or("decoder_sparse_step", 1)?.max(1), config.sizes("mlp_only_layers")?);
    let mixture = softmax_mixture(config, shared)?;
    let is_sparse = |layer: usize| mixture.count > 0 && (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
    let sparse: Vec<bool> = (0..family.architecture.layers.len()).map(is_sparse).collect();
    mixture.apply_to(family, &sparse);
    Ok(())
}
