//! Llama's relations: each is Llama with one to three things changed, and says only what those are.

use super::Family;
use super::llama::{llama, llama_like, mistral, slide};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::names::{Names, Part};
use crate::rope::rope;
use pellucid_engine::architecture::{Gain, Layer, Mlp, Norm, NormKind, RopeStyle, Routing};

/// Arcee: plain MLPs.
pub(super) fn arcee(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    family.each(plain_mlp);
    Ok(family)
}

/// Code World Model: some layers slide.
pub(super) fn cwm(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    slide(config, &mut family, config.size_maybe("sliding_window")?, |layer| layer % 4 != 0)?;
    Ok(family)
}

/// Cohere: parallel blocks with one layer norm without bias, neighbouring coordinates rotate, logits are scaled.
pub(super) fn cohere(config: &Config) -> Result<Family> {
    if config.flag_or("use_qk_norm", false)? {
        return Err(refused("use_qk_norm", "norms with a gain for each head"));
    }
    let mut family = llama_like(config)?;
    let norm = layer_norm(config, "layer_norm_eps", false)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each(|layer| {
        layer.parallel = true;
        (layer.attn_norm, layer.mlp_norm) = (Some(norm), None);
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
    });
    family.architecture.final_norm = Some(norm);
    family.architecture.head.scale = Some(config.number_or("logit_scale", 0.0625)?);
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    rotate_pairs(config, &mut family)?;
    Ok(family)
}

/// GLM: part of each head rotates, in neighbouring coordinates; gate and up are stored as one.
pub(super) fn glm(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each(|layer| layer.attention.qkv_bias = bias);
    rotate_pairs(config, &mut family)?;
    family.names = fused_gate_up(family.names, config.size("intermediate_size")?);
    Ok(family)
}

/// Granite: multipliers on embeddings, scores, sublayers and logits.
pub(super) fn granite(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    let (scores, sublayers) =
        (config.number_or("attention_multiplier", 1.0)?, config.number_or("residual_multiplier", 1.0)?);
    family.each(|layer| {
        layer.attention.scale = scores;
        layer.residual_scale = Some(sublayers);
    });
    family.architecture.embedding.scale = Some(config.number_or("embedding_multiplier", 1.0)?);
    family.architecture.head.scale = Some(1.0 / config.number_or("logits_scaling", 1.0)?);
    Ok(family)
}

/// Helium: neighbouring coordinates rotate.
pub(super) fn helium(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    // The output projection never has a bias.
    family.each(|layer| layer.attention.out_bias = false);
    rotate_pairs(config, &mut family)?;
    Ok(family)
}

/// Ministral: Mistral whose layers slide by type.
pub(super) fn ministral(config: &Config) -> Result<Family> {
    mistral(config)
}

/// OLMo: norms without anything learned.
pub(super) fn olmo(config: &Config) -> Result<Family> {
    if config.get("clip_qkv").is_some() {
        return Err(refused("clip_qkv", "clipped queries, keys and values"));
    }
    let mut family = llama_like(config)?;
    let (norm, bias) = (
        Norm { kind: NormKind::Layer, eps: 1e-5, gain: Gain::None, bias: false },
        config.flag_or("attention_bias", false)?,
    );
    family.each(|layer| {
        (layer.attn_norm, layer.mlp_norm) = (Some(norm), Some(norm));
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
    });
    family.architecture.final_norm = Some(norm);
    Ok(family)
}

/// OLMo 2: norms after the sublayers instead of before, and on all queries and all keys together.
pub(super) fn olmo2(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.each(|layer| {
        layer.attention.qk_norm = layer.attn_norm;
        layer.attention.qk_norm_flat = true;
        (layer.attention.qkv_bias, layer.attention.out_bias) = (bias, bias);
        (layer.attn_post_norm, layer.mlp_post_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.names = family.names.with(&[
        ("layers.{l}.attn.post_norm", "layers.{l}.post_attention_layernorm"),
        ("layers.{l}.mlp.post_norm", "layers.{l}.post_feedforward_layernorm"),
    ]);
    Ok(family)
}

/// Phi 3: queries, keys and values stored as one, gate and up as one.
pub(super) fn phi3(config: &Config) -> Result<Family> {
    let mut family = mistral(config)?;
    let layer = family.architecture.layers.first().map(|layer| layer.attention.clone());
    let (q, k) = layer.map_or((0, 0), |a| (a.heads * a.head_dim, a.kv_heads * a.head_dim));
    let (stored, total) = ("layers.{l}.self_attn.qkv_proj", q + 2 * k);
    let names = family
        .names
        .without(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with_part("layers.{l}.attn.q", stored, Part::Rows { start: 0, total }, false)
        .with_part("layers.{l}.attn.k", stored, Part::Rows { start: q, total }, false)
        .with_part("layers.{l}.attn.v", stored, Part::Rows { start: q + k, total }, false);
    family.names = fused_gate_up(names, config.size("intermediate_size")?);
    Ok(family)
}

/// Qwen 3 with experts in some or all layers.
pub(super) fn qwen3_moe(config: &Config) -> Result<Family> {
    let mut family = super::llama::qwen3(config)?;
    let experts = config.size_maybe("num_experts")?.map_or_else(|| config.size("num_local_experts"), Ok)?;
    let (chosen, width) = (config.size("num_experts_per_tok")?, config.size("moe_intermediate_size")?);
    let (step, renormalise) =
        (config.size_or("decoder_sparse_step", 1)?.max(1), config.flag_or("norm_topk_prob", false)?);
    let dense: Vec<usize> = config.sizes("mlp_only_layers")?;
    for (index, layer) in family.architecture.layers.iter_mut().enumerate() {
        let Mlp::Gated { activation, .. } = layer.mlp else { continue };
        if (index + 1).is_multiple_of(step) && !dense.contains(&index) {
            layer.mlp = Mlp::Experts {
                experts,
                chosen,
                width,
                activation,
                routing: Routing::SoftmaxThenChoose { renormalise },
            };
        }
    }
    let stacked = Part::Stacked { index: 0, count: experts };
    let mut names = family.names.with(&[("layers.{l}.mlp.router", "layers.{l}.mlp.gate")]);
    for part in ["gate", "up", "down"] {
        let module = format!("layers.{{l}}.mlp.experts.{{e}}.{part}");
        names = names.with(&[(&module, &format!("layers.{{l}}.mlp.experts.{{e}}.{part}_proj"))]);
        // GGUF files stack the experts of a layer.
        names = names.with_part(&module, &format!("layers.{{l}}.mlp.experts.{part}"), stacked, false);
    }
    family.names = names;
    Ok(family)
}

/// Seed-OSS: the output projection has its own switch for a bias.
pub(super) fn seed_oss(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    let bias = config.flag_or("attention_out_bias", false)?;
    family.each(|layer| layer.attention.out_bias = bias);
    Ok(family)
}

/// SmolLM 3: some layers have no positions.
pub(super) fn smollm3(config: &Config) -> Result<Family> {
    let mut family = llama(config)?;
    let interval = config.size_or("no_rope_layer_interval", 4)?.max(1);
    let rotates = config.sizes("no_rope_layers")?;
    for (index, layer) in family.architecture.layers.iter_mut().enumerate() {
        // Despite its name, the list says 1 for the layers that do rotate.
        let here = rotates.get(index).map_or(!(index + 1).is_multiple_of(interval), |&flag| flag == 1);
        layer.attention.rope = layer.attention.rope.filter(|_| here);
    }
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    let window = if config.flag_or("use_sliding_window", false)? { config.size_maybe("sliding_window")? } else { None };
    slide(config, &mut family, window, |_| true)?;
    Ok(family)
}

/// StableLM: layer norms, partial rotation, perhaps parallel blocks.
pub(super) fn stablelm(config: &Config) -> Result<Family> {
    if config.flag_or("qk_layernorm", false)? {
        return Err(refused("qk_layernorm", "norms with a gain for each head"));
    }
    let mut family = llama_like(config)?;
    let (norm, bias) = (layer_norm(config, "layer_norm_eps", true)?, config.flag_or("use_qkv_bias", false)?);
    let parallel = config.flag_or("use_parallel_residual", false)?;
    family.each(|layer| {
        layer.parallel = parallel;
        (layer.attn_norm, layer.mlp_norm) = (Some(norm), (!parallel).then_some(norm));
        layer.attention.qkv_bias = bias;
    });
    family.architecture.final_norm = Some(norm);
    Ok(family)
}

/// StarCoder 2: layer norms, plain MLPs, biases everywhere.
pub(super) fn starcoder2(config: &Config) -> Result<Family> {
    let mut family = mistral(config)?;
    let (norm, biases) = (layer_norm(config, "norm_epsilon", true)?, config.flag_or("use_bias", true)?);
    family.each(|layer| {
        (layer.attn_norm, layer.mlp_norm) = (Some(norm), Some(norm));
        (layer.attention.qkv_bias, layer.attention.out_bias) = (biases, biases);
        plain_mlp(layer);
        if let Mlp::Plain { bias, .. } = &mut layer.mlp {
            *bias = biases;
        }
    });
    family.architecture.final_norm = Some(norm);
    family.architecture.head.tied = config.flag_or("tie_word_embeddings", true)?;
    family.names = family
        .names
        .replacing("layers.{l}.mlp.up", "layers.{l}.mlp.c_fc")
        .replacing("layers.{l}.mlp.down", "layers.{l}.mlp.c_proj");
    Ok(family)
}

fn plain_mlp(layer: &mut Layer) {
    if let Mlp::Gated { width, activation, bias } = layer.mlp {
        layer.mlp = Mlp::Plain { width, activation, bias };
    }
}

fn layer_norm(config: &Config, key: &str, bias: bool) -> Result<Norm> {
    Ok(Norm { bias, ..Norm::layer(config.number_or(key, 1e-5)?) })
}

fn rotate_pairs(config: &Config, family: &mut Family) -> Result<()> {
    let head_dim = family.architecture.layers.first().map_or(0, |layer| layer.attention.head_dim);
    family.architecture.ropes = vec![rope(config, head_dim, RopeStyle::Pairs)?];
    Ok(())
}

fn fused_gate_up(names: Names, neurons: usize) -> Names {
    let (stored, total) = ("layers.{l}.mlp.gate_up_proj", 2 * neurons);
    names
        .without(&["layers.{l}.mlp.gate", "layers.{l}.mlp.up"])
        .with_part("layers.{l}.mlp.gate", stored, Part::Rows { start: 0, total }, false)
        .with_part("layers.{l}.mlp.up", stored, Part::Rows { start: neurons, total }, false)
}

fn refused(key: &str, what: &str) -> Error {
    Error::unsupported(
        format!("`{key}` asks for {what}, which this build does not have"),
        "use a model with the switch off",
    )
}
