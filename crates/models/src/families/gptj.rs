//! GPT-J, CodeGen and Phi: parallel blocks with one shared layer norm, partial rotary, ungated
//! MLPs, a head with a bias.

use super::{Family, activation, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::{build_rope, rope};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Attention, Dense, Embedding, Head, Layer, Mlp, Norm, RopeStyle};

/// GPT-J: interleaved rotary, no biases in attention.
pub(super) fn gptj(config: &Config) -> Result<Family> {
    let (width, heads) = (config.size("n_embd")?, config.size("n_head")?);
    let head_dim = width / heads.max(1);
    let rotated = config.size_or("rotary_dim", 64)? as f32 / head_dim.max(1) as f32;
    let rope = build_rope(config, None, 10_000.0, head_dim, rotated, RopeStyle::Pairs)?;
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let activation = activation(config, "activation_function", "gelu_new")?;
    let mlp = Mlp::Dense(Dense::plain(config.size_or("n_inner", 4 * width)?, activation).with_bias(true));
    let layer = block(norm, heads, heads, head_dim, mlp);
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("n_positions")?,
        embedding: Embedding::default(),
        layers: vec![layer; config.size("n_layer")?],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", false)?, bias: true, ..Head::default() },
        ropes: vec![rope],
        modules: modules("transformer", "h", "attn", "mlp", "wte", "ln_f", "lm_head"),
    };
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "wte"),
            ("layers.{l}.attn.norm", "h.{l}.ln_1"),
            ("layers.{l}.attn.q", "h.{l}.attn.q_proj"),
            ("layers.{l}.attn.k", "h.{l}.attn.k_proj"),
            ("layers.{l}.attn.v", "h.{l}.attn.v_proj"),
            ("layers.{l}.attn.out", "h.{l}.attn.out_proj"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.fc_in"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.fc_out"),
            ("final_norm", "ln_f"),
        ])
        .without_prefix("head", "lm_head")
        .ignoring(&[".attn.bias", ".attn.masked_bias", ".attn.embed_positions"]);
    Ok(Family { architecture, names })
}

/// CodeGen: GPT-J with Q, V and K fused in four blocks.
pub(super) fn codegen(config: &Config) -> Result<Family> {
    const BLOCKS: usize = 4;
    let mut family = gptj(config)?;
    let block = config.size("n_embd")? / BLOCKS;
    let fused = "h.{l}.attn.qkv_proj";
    family.names = family
        .names
        .removing(&["layers.{l}.attn.q", "layers.{l}.attn.k", "layers.{l}.attn.v"])
        .with_part("layers.{l}.attn.q", fused, StoredPart::per_head(0, 3, block))
        .with_part("layers.{l}.attn.v", fused, StoredPart::per_head(1, 3, block))
        .with_part("layers.{l}.attn.k", fused, StoredPart::per_head(2, 3, block))
        .ignoring(&[".attn.causal_mask"]);
    Ok(family)
}

/// Phi 1 and 2: rotate-half rotary, biases everywhere.
pub(super) fn phi(config: &Config) -> Result<Family> {
    let (width, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
    let head_dim = width / heads.max(1);
    let rotary = config.with_defaults([("partial_rotary_factor", serde_json::json!(0.5))]);
    let norm = Norm::layer(config.number_or("layer_norm_eps", 1e-5)?);
    let activation = activation(config, "hidden_act", "gelu_new")?;
    let mlp = Mlp::Dense(Dense::plain(config.size("intermediate_size")?, activation).with_bias(true));
    let mut layer = block(norm, heads, config.size_or("num_key_value_heads", heads)?, head_dim, mlp);
    let qk_norm = config.flag_or("qk_layernorm", false)?.then_some(norm);
    layer.attention = layer.attention.map(|a| Attention { qkv_bias: true, out_bias: true, qk_norm, ..a });
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("max_position_embeddings")?,
        embedding: Embedding::default(),
        layers: vec![layer; config.size("num_hidden_layers")?],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", false)?, bias: true, ..Head::default() },
        ropes: vec![rope(&rotary, head_dim, RopeStyle::Halves)?],
        modules: modules("model", "layers", "self_attn", "mlp", "embed_tokens", "final_layernorm", "lm_head"),
    };
    let names = Names::new(&["model.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
            ("layers.{l}.attn.k", "layers.{l}.self_attn.k_proj"),
            ("layers.{l}.attn.v", "layers.{l}.self_attn.v_proj"),
            ("layers.{l}.attn.out", "layers.{l}.self_attn.dense"),
            ("layers.{l}.attn.q_norm", "layers.{l}.self_attn.q_layernorm"),
            ("layers.{l}.attn.k_norm", "layers.{l}.self_attn.k_layernorm"),
            ("layers.{l}.mlp.up", "layers.{l}.mlp.fc1"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp.fc2"),
            ("final_norm", "final_layernorm"),
        ])
        .without_prefix("head", "lm_head")
        .ignoring(&[".rotary_emb.inv_freq"]);
    Ok(Family { architecture, names })
}

/// A parallel block with one norm and no biases in attention.
fn block(norm: Norm, heads: usize, kv_heads: usize, head_dim: usize, mlp: Mlp) -> Layer {
    let attention = Attention { rope: Some(0), ..Attention::plain(heads, kv_heads, head_dim) };
    Layer { parallel: true, mlp_norm: None, ..Layer::pre_norm(norm, attention, mlp) }
}
