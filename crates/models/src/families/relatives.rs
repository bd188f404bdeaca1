//! Llama's relations: each is Llama with one to three things changed, and says only what those are.

use super::Family;
use super::llama::{llama, llama_like, mistral, slide, sliding};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, Part};
use crate::rope::{or_parameters, rope, scaling, with_scaling};
use pellucid_engine::architecture::{Dense, Gain, Norm, NormSpan, RopeStyle};
use serde_json::json;

/// Arcee: plain MLPs.
pub(super) fn arcee(config: &Config) -> Result<Family> {
    let config = config.with_defaults([("hidden_act", json!("relu2")), ("rms_norm_eps", json!(1e-5))]);
    let mut family = llama(&config)?;
    family.each_dense(|dense| dense.gated = false);
    Ok(family)
}

/// Code World Model: some layers slide.
pub(super) fn cwm(config: &Config) -> Result<Family> {
    let config = &llama3_rotation(config, 16.0).with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("sliding_window", json!(8192)),
    ]);
    let mut family = llama(&config.with("attention_bias", false.into()))?;
    slide(config, &mut family, config.size_maybe("sliding_window")?, |layer| layer % 4 != 0)?;
    Ok(family)
}

/// Llama 3's scaling where a configuration has no rotation at all.
pub(super) fn llama3_rotation(config: &Config, factor: f32) -> Config {
    if scaling(config).is_some() {
        return config.clone();
    }
    let default = json!({
        "rope_type": "llama3",
        "factor": factor,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    });
    or_parameters(config, default)
}

/// Cohere: parallel blocks with one layer norm without bias, neighbouring coordinates rotate, logits are scaled.
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
    rotate_pairs(config, &mut family)?;
    Ok(family)
}

/// Cohere 2: some layers slide, and only those rotate.
pub(super) fn cohere2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("rope_theta", json!(10_000.0)), ("sliding_window", json!(4096))]);
    let mut family = cohere(config)?;
    let pattern = config.size_or("sliding_window_pattern", 4)?.max(1);
    slide(config, &mut family, config.size_maybe("sliding_window")?, |layer| !(layer + 1).is_multiple_of(pattern))?;
    family.each_attention(|a| a.rope = a.rope.filter(|_| a.window.is_some()));
    Ok(family)
}

/// ERNIE 4.5: neighbouring coordinates rotate, one switch for all biases.
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
    rotate_pairs(&config, &mut family)?;
    Ok(family)
}

/// EXAONE 4: norms after the sublayers, norms on queries and keys; where some layers slide, only those rotate.
pub(super) fn exaone4(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(32)),
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(4096)),
    ]);
    let mut family = llama_like(config)?;
    let window = config.size_maybe("sliding_window")?;
    // A number, or letters of which the last is the full layer.
    let pattern = match config.text("sliding_window_pattern") {
        Some(letters) => letters.len(),
        None => config.size_or("sliding_window_pattern", 4)?,
    };
    let pattern = pattern.max(1);
    slide(config, &mut family, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
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

/// GLM: part of each head rotates, in neighbouring coordinates; gate and up are stored as one.
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
    rotate_pairs(config, &mut family)?;
    family.names = fused_gate_up(family.names, config.size("intermediate_size")?);
    Ok(family)
}

/// GLM 4 (0414): GLM with norms after the sublayers, too.
pub(super) fn glm4(config: &Config) -> Result<Family> {
    let mut family = glm(config)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm, layer.mlp_norm));
    family.names = family.names.with(&post_norms("post_self_attn_layernorm", "post_mlp_layernorm"));
    Ok(family)
}

/// Granite: multipliers on embeddings, scores, sublayers and logits.
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

/// Helium: neighbouring coordinates rotate.
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
    rotate_pairs(config, &mut family)?;
    Ok(family)
}

/// HyperCLOVA X: Granite, perhaps with norms after the sublayers, and logits multiplied instead of divided.
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

/// Jais 2: layer norms and plain MLPs.
pub(super) fn jais2(config: &Config) -> Result<Family> {
    let config = config
        .with("attention_bias", config.flag_or("attention_bias", true)?.into())
        .with("mlp_bias", config.flag_or("mlp_bias", true)?.into());
    let mut family = arcee(&config)?;
    let norm = layer_norm(&config, "layer_norm_eps", true)?;
    family.set_norms(norm);
    Ok(family)
}

/// Ministral: Mistral whose layers slide by type.
pub(super) fn ministral(config: &Config) -> Result<Family> {
    mistral(config)
}

/// Nemotron: layer norms whose gains are stored as their distance from one, plain MLPs, partial rotation.
pub(super) fn nemotron(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("partial_rotary_factor", json!(0.5))]);
    let mut family = arcee(config)?;
    let norm = Norm { gain: Gain::OnePlusWeight, ..layer_norm(config, "norm_eps", true)? };
    family.set_norms(norm);
    Ok(family)
}

/// Phi 3: queries, keys and values stored as one, gate and up as one.
pub(super) fn phi3(config: &Config) -> Result<Family> {
    // What stands outside the scaling counts.
    let original = config.size_or("original_max_position_embeddings", 4096)?;
    let config = with_scaling(config, "original_max_position_embeddings", original.into())
        .with_defaults([("rms_norm_eps", json!(1e-5))]);
    let mut family = sliding(&config)?;
    let layer = family.architecture.layers.first().and_then(|layer| layer.attention.clone());
    let (q, k) = layer.map_or((0, 0), |a| (a.heads * a.head_dim, a.kv_heads * a.head_dim));
    let (stored, total) = ("layers.{l}.self_attn.qkv_proj", q + 2 * k);
    let names = family
        .names
        .without(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with_part("layers.{l}.attn.q", stored, Part::rows(0, total), false)
        .with_part("layers.{l}.attn.k", stored, Part::rows(q, total), false)
        .with_part("layers.{l}.attn.v", stored, Part::rows(q + k, total), false);
    family.names = fused_gate_up(names, config.size("intermediate_size")?);
    Ok(family)
}

/// Seed-OSS: the output projection has its own switch for a bias.
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

/// SmolLM 3: some layers have no positions.
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
    slide(config, &mut family, window, |layer| !rotates(layer))?;
    Ok(family)
}

/// StableLM: layer norms, partial rotation, perhaps parallel blocks.
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
        // Each head's gain is a module of its own.
        let heads = |name: &str, count: usize| -> Vec<String> {
            (0..count).map(|head| format!("layers.{{l}}.self_attn.{name}.norms.{head}")).collect()
        };
        let count = config.size("num_attention_heads")?;
        family.names = family
            .names
            .without(&["layers.{l}.attn.q_norm", "layers.{l}.attn.k_norm"])
            .with_pieces("layers.{l}.attn.q_norm", &heads("q_layernorm", count))
            .with_pieces(
                "layers.{l}.attn.k_norm",
                &heads("k_layernorm", config.size_or("num_key_value_heads", count)?),
            );
    }
    Ok(family)
}

/// StarCoder 2: layer norms, plain MLPs, biases everywhere.
pub(super) fn starcoder2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("hidden_act", json!("gelu_pytorch_tanh")), ("num_key_value_heads", json!(2))]);
    let mut family = sliding(config)?;
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

/// The modules of norms after the sublayers.
pub(super) fn post_norms(attention: &str, mlp: &str) -> [(&'static str, String); 2] {
    let stored = |name: &str| format!("layers.{{l}}.{name}");
    [("layers.{l}.attn.post_norm", stored(attention)), ("layers.{l}.mlp.post_norm", stored(mlp))]
}

pub(super) fn layer_norm(config: &Config, key: &str, bias: bool) -> Result<Norm> {
    Ok(Norm { bias, ..Norm::layer(config.number_or(key, 1e-5)?) })
}

pub(super) fn rotate_pairs(config: &Config, family: &mut Family) -> Result<()> {
    family.architecture.ropes = vec![rope(config, family.head_dim(), RopeStyle::Pairs)?];
    Ok(())
}

fn fused_gate_up(names: Names, neurons: usize) -> Names {
    let (stored, total) = ("layers.{l}.mlp.gate_up_proj", 2 * neurons);
    names
        .without(&["layers.{l}.mlp.gate", "layers.{l}.mlp.up"])
        .with_part("layers.{l}.mlp.gate", stored, Part::rows(0, total), false)
        .with_part("layers.{l}.mlp.up", stored, Part::rows(neurons, total), false)
}
