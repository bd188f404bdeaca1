//! Families that differ from Llama in a few fields. Each function sets only the differences.

use super::Family;
use super::llama::{llama, llama_like, mistral, mistral_like, set_sliding_window};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::{rope, rope_parameters_or, rope_scaling, with_rope_scaling_key};
use pellucid_engine::architecture::{Dense, Gain, Norm, NormSpan, RopeStyle};
use serde_json::json;

/// Arcee: ungated MLPs.
pub(super) fn arcee(config: &Config) -> Result<Family> {
    let config = config.with_defaults([("hidden_act", json!("relu2")), ("rms_norm_eps", json!(1e-5))]);
    let mut family = llama(&config)?;
    family.each_dense(|dense| dense.gated = false);
    Ok(family)
}

/// Code World Model: sliding window in three of four layers.
pub(super) fn cwm(config: &Config) -> Result<Family> {
    let config = &with_llama3_scaling(config, 16.0).with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("sliding_window", json!(8192)),
    ]);
    let mut family = llama(&config.with("attention_bias", false.into()))?;
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| layer % 4 != 0)?;
    Ok(family)
}

/// Returns the configuration with Llama 3's rotary scaling if it has none.
pub(super) fn with_llama3_scaling(config: &Config, factor: f32) -> Config {
    if rope_scaling(config).is_some() {
        return config.clone();
    }
    let default = json!({
        "rope_type": "llama3",
        "factor": factor,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    });
    rope_parameters_or(config, default)
}

/// Cohere: parallel blocks with one bias-free layer norm, interleaved rotary, scaled logits.
pub(super) fn cohere(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("rope_theta", json!(500_000.0))]);
    let mut family = llama_like(config)?;
    let norm = layer_norm(config, "layer_norm_eps", false)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.set_norms(norm);
    family.set_attention_bias(bias);
    family.each(|layer| (layer.parallel, layer.mlp_norm) = (true, None));
    if config.flag_or("use_qk_norm", false)? {
        family.each_attention(|a| (a.qk_norm, a.qk_norm_span) = (Some(norm), NormSpan::HeadGains));
    }
    family.architecture.head.scale = Some(config.number_or("logit_scale", 0.0625)?);
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    set_interleaved_rope(config, &mut family)?;
    Ok(family)
}

/// Cohere 2: sliding window in some layers; only those have rotary positions.
pub(super) fn cohere2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("rope_theta", json!(10_000.0)), ("sliding_window", json!(4096))]);
    let mut family = cohere(config)?;
    let pattern = config.size_or("sliding_window_pattern", 4)?.max(1);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| {
        !(layer + 1).is_multiple_of(pattern)
    })?;
    family.each_attention(|a| a.rope = a.rope.filter(|_| a.window.is_some()));
    Ok(family)
}

/// ERNIE 4.5: interleaved rotary; `use_bias` applies to all projections.
pub(super) fn ernie4_5(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(2)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(500_000.0)),
    ]);
    let biases = config.flag_or("use_bias", false)?;
    let config = config.with("attention_bias", biases.into()).with("mlp_bias", biases.into());
    let mut family = llama(&config)?;
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    set_interleaved_rope(&config, &mut family)?;
    Ok(family)
}

/// EXAONE 4: post-norms, QK norm. If some layers have a sliding window, only those have rotary
/// positions.
pub(super) fn exaone4(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(32)),
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(4096)),
    ]);
    let mut family = llama_like(config)?;
    let window = config.size_maybe("sliding_window")?;
    // An integer, or a string such as `LLLG`, whose last letter is the full-attention layer of each
    // period.
    let pattern = match config.text("sliding_window_pattern") {
        Some(letters) => letters.len(),
        None => config.size_or("sliding_window_pattern", 4)?,
    };
    let pattern = pattern.max(1);
    set_sliding_window(config, &mut family, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    family.each(|layer| {
        if let Some(a) = &mut layer.attention {
            a.qk_norm = layer.attn_norm;
            a.rope = a.rope.filter(|_| window.is_none() || a.window.is_some());
        }
        (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.names = family.names.with(&post_norms("post_attention_layernorm", "post_feedforward_layernorm"));
    Ok(family)
}

/// GLM: partial interleaved rotary; gate and up are fused.
pub(super) fn glm(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("attention_bias", json!(true)),
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(2)),
        ("rms_norm_eps", json!(1.5625e-7)),
        ("partial_rotary_factor", json!(0.5)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each_attention(|a| a.qkv_bias = bias);
    set_interleaved_rope(config, &mut family)?;
    family.names = fused_gate_up(family.names, config.size("intermediate_size")?);
    Ok(family)
}

/// GLM 4 (0414): GLM with additional post-norms.
pub(super) fn glm4(config: &Config) -> Result<Family> {
    let mut family = glm(config)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm, layer.mlp_norm));
    family.names = family.names.with(&post_norms("post_self_attn_layernorm", "post_mlp_layernorm"));
    Ok(family)
}

/// Granite: multipliers of the embedding, attention scores, sublayer outputs and logits.
pub(super) fn granite(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    let (scores, sublayers) =
        (config.number_or("attention_multiplier", 1.0)?, config.number_or("residual_multiplier", 1.0)?);
    family.each_attention(|a| a.scale = scores);
    family.each(|layer| (layer.attn_multiplier, layer.mlp_multiplier) = (Some(sublayers), Some(sublayers)));
    family.architecture.embedding.scale = Some(config.number_or("embedding_multiplier", 1.0)?);
    family.architecture.head.scale = Some(1.0 / config.number_or("logits_scaling", 1.0)?);
    Ok(family)
}

/// Helium: interleaved rotary.
pub(super) fn helium(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(20)),
        ("rms_norm_eps", json!(1e-8)),
        ("rope_theta", json!(100_000.0)),
    ]);
    let mut family = llama(config)?;
    // The output projection never has a bias.
    family.each_attention(|a| a.out_bias = false);
    set_interleaved_rope(config, &mut family)?;
    Ok(family)
}

/// HyperCLOVA X: Granite with optional post-norms; `logits_scaling` multiplies instead of divides.
pub(super) fn hyperclovax(config: &Config) -> Result<Family> {
    let mut family = granite(config)?;
    if config.number_maybe("attention_multiplier")?.is_none() {
        family.each_attention(|a| a.scale = 1.0 / (a.head_dim as f32).sqrt());
    }
    family.architecture.head.scale = Some(config.number_or("logits_scaling", 1.0)?);
    if config.flag_or("use_post_norm", true)? {
        family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm, layer.mlp_norm));
        family.names = family.names.with(&post_norms("post_norm1", "post_norm2"));
    }
    Ok(family)
}

/// Jais 2: layer norms, ungated MLPs.
pub(super) fn jais2(config: &Config) -> Result<Family> {
    let config = config
        .with("attention_bias", config.flag_or("attention_bias", true)?.into())
        .with("mlp_bias", config.flag_or("mlp_bias", true)?.into());
    let mut family = arcee(&config)?;
    let norm = layer_norm(&config, "layer_norm_eps", true)?;
    family.set_norms(norm);
    Ok(family)
}

/// Ministral: Mistral with the sliding window by layer type.
pub(super) fn ministral(config: &Config) -> Result<Family> {
    mistral(config)
}

/// Nemotron: layer norms that apply `1 + weight`, ungated MLPs, partial rotary.
pub(super) fn nemotron(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("partial_rotary_factor", json!(0.5))]);
    let mut family = arcee(config)?;
    let norm = Norm { gain: Gain::OnePlusWeight, ..layer_norm(config, "norm_eps", true)? };
    family.set_norms(norm);
    Ok(family)
}

/// Phi 3: fused QKV, fused gate and up.
pub(super) fn phi3(config: &Config) -> Result<Family> {
    // The outer key takes precedence over the one in `rope_scaling`.
    let original = config.size_or("original_max_position_embeddings", 4096)?;
    let config = with_rope_scaling_key(config, "original_max_position_embeddings", original.into())
        .with_defaults([("rms_norm_eps", json!(1e-5))]);
    let mut family = mistral_like(&config)?;
    let layer = family.architecture.layers.first().and_then(|layer| layer.attention.clone());
    let (q, k) = layer.map_or((0, 0), |a| (a.heads * a.head_dim, a.kv_heads * a.head_dim));
    let (stored, total) = ("layers.{l}.self_attn.qkv_proj", q + 2 * k);
    let names = family
        .names
        .removing(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with_part("layers.{l}.attn.q", stored, StoredPart::rows(0, total))
        .with_part("layers.{l}.attn.k", stored, StoredPart::rows(q, total))
        .with_part("layers.{l}.attn.v", stored, StoredPart::rows(q + k, total));
    family.names = fused_gate_up(names, config.size("intermediate_size")?);
    Ok(family)
}

/// Seed-OSS: a separate flag for the bias of the output projection.
pub(super) fn seed_oss(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("attention_bias", json!(true)),
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
    ]);
    let mut family = llama(config)?;
    let bias = config.flag_or("attention_out_bias", false)?;
    family.each_attention(|a| a.out_bias = bias);
    Ok(family)
}

/// SmolLM 3: some layers have no rotary positions (NoPE).
pub(super) fn smollm3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(4)), ("rope_theta", json!(2_000_000.0))]);
    let mut family = llama(config)?;
    let interval = config.size_or("no_rope_layer_interval", 4)?.max(1);
    let rotates = config.sizes("no_rope_layers")?;
    // Despite its name, the list says 1 for the layers that do rotate.
    let rotates = |layer: usize| rotates.get(layer).map_or(!(layer + 1).is_multiple_of(interval), |&flag| flag == 1);
    let mut index = 0;
    family.each_attention(|a| {
        a.rope = a.rope.filter(|_| rotates(index));
        index += 1;
    });
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    let window = if config.flag_or("use_sliding_window", false)? { config.size_maybe("sliding_window")? } else { None };
    set_sliding_window(config, &mut family, window, |layer| !rotates(layer))?;
    Ok(family)
}

/// StableLM: layer norms, partial rotary, optional parallel blocks and QK norm.
pub(super) fn stablelm(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(32)), ("partial_rotary_factor", json!(0.25))]);
    let mut family = llama_like(config)?;
    let (norm, bias) = (layer_norm(config, "layer_norm_eps", true)?, config.flag_or("use_qkv_bias", false)?);
    let parallel = config.flag_or("use_parallel_residual", false)?;
    family.set_norms(norm);
    family.each(|layer| (layer.parallel, layer.mlp_norm) = (parallel, (!parallel).then_some(norm)));
    family.each_attention(|a| a.qkv_bias = bias);
    if config.flag_or("qk_layernorm", false)? {
        let norm = Norm { bias: false, ..norm };
        family.each_attention(|a| (a.qk_norm, a.qk_norm_span) = (Some(norm), NormSpan::HeadGains));
        // The gain of each head is stored as a separate module.
        let heads = |name: &str, count: usize| -> Vec<String> {
            (0..count).map(|head| format!("layers.{{l}}.self_attn.{name}.norms.{head}")).collect()
        };
        let count = config.size("num_attention_heads")?;
        family.names = family
            .names
            .removing(&["layers.{l}.attn.q_norm", "layers.{l}.attn.k_norm"])
            .with_pieces("layers.{l}.attn.q_norm", &heads("q_layernorm", count))
            .with_pieces(
                "layers.{l}.attn.k_norm",
                &heads("k_layernorm", config.size_or("num_key_value_heads", count)?),
            );
    }
    Ok(family)
}

/// StarCoder 2: layer norms, ungated MLPs, biases everywhere.
pub(super) fn starcoder2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("hidden_act", json!("gelu_pytorch_tanh")), ("num_key_value_heads", json!(2))]);
    let mut family = mistral_like(config)?;
    let (norm, biases) = (layer_norm(config, "norm_epsilon", true)?, config.flag_or("use_bias", true)?);
    family.set_norms(norm);
    family.set_attention_bias(biases);
    family.each_dense(|dense| *dense = Dense::plain(dense.width, dense.activation).with_bias(biases));
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    family.names = family
        .names
        .replacing("layers.{l}.mlp.up", "layers.{l}.mlp.c_fc")
        .replacing("layers.{l}.mlp.down", "layers.{l}.mlp.c_proj");
    Ok(family)
}

/// Name entries of the post-norms.
pub(super) fn post_norms(attention: &str, mlp: &str) -> [(&'static str, String); 2] {
    let stored = |name: &str| format!("layers.{{l}}.{name}");
    [("layers.{l}.attn.post_norm", stored(attention)), ("layers.{l}.mlp.post_norm", stored(mlp))]
}

pub(super) fn layer_norm(config: &Config, key: &str, bias: bool) -> Result<Norm> {
    Ok(Norm { bias, ..Norm::layer(config.number_or(key, 1e-5)?) })
}

pub(super) fn set_interleaved_rope(config: &Config, family: &mut Family) -> Result<()> {
    family.architecture.ropes = vec![rope(config, family.head_dim(), RopeStyle::Pairs)?];
    Ok(())
}

fn fused_gate_up(names: Names, neurons: usize) -> Names {
    let (stored, total) = ("layers.{l}.mlp.gate_up_proj", 2 * neurons);
    names
        .removing(&["layers.{l}.mlp.gate", "layers.{l}.mlp.up"])
        .with_part("layers.{l}.mlp.gate", stored, StoredPart::rows(0, total))
        .with_part("layers.{l}.mlp.up", stored, StoredPart::rows(neurons, total))
}
