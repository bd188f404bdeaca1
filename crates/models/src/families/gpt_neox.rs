//! GPT-NeoX and Pythia, GPT-NeoX Japanese, Persimmon: partial rotary, QKV fused head by head.

use super::{Family, activation, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::rope;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Attention, Dense, Embedding, Head, Layer, Mlp, Norm, RopeStyle};
use serde_json::json;

/// GPT-NeoX: parallel blocks unless `use_parallel_residual` is false.
pub(super) fn gpt_neox(config: &Config) -> Result<Family> {
    let (width, depth, heads) =
        (config.size("hidden_size")?, config.size("num_hidden_layers")?, config.size("num_attention_heads")?);
    let head_dim = width / heads.max(1);
    let norm = Norm::layer(config.number_or("layer_norm_eps", 1e-5)?);
    let bias = config.flag_or("attention_bias", true)?;
    let attention =
        Attention { qkv_bias: bias, out_bias: bias, rope: Some(0), ..Attention::plain(heads, heads, head_dim) };
    let activation = activation(config, "hidden_act", "gelu")?;
    let mlp = Mlp::Dense(Dense::plain(config.size("intermediate_size")?, activation).with_bias(true));
    let parallel = config.flag_or("use_parallel_residual", true)?;
    let layer = Layer { parallel, ..Layer::pre_norm(norm, attention, mlp) };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("max_position_embeddings")?,
        embedding: Embedding::default(),
        layers: vec![layer; depth],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", false)?, ..Head::default() },
        ropes: vec![rope(&config.with_defaults([("rotary_pct", json!(0.25))]), head_dim, RopeStyle::Halves)?],
        modules: modules("gpt_neox", "layers", "attention", "mlp", "embed_in", "final_layer_norm", "embed_out"),
    };
    let part = |which: usize| StoredPart::per_head(which, 3, head_dim);
    let fused = "layers.{l}.attention.query_key_value";
    let names = Names::new(&["gpt_neox.", ""])
        .with(&[
            ("embed", "embed_in"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.attn.out", "layers.{l}.attention.dense"),
            ("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm"),
            ("layers.{l}.mlp.up", "layers.{l}.mlp.dense_h_to_4h"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp.dense_4h_to_h"),
            ("final_norm", "final_layer_norm"),
        ])
        .with_part("layers.{l}.attn.q", fused, part(0))
        .with_part("layers.{l}.attn.k", fused, part(1))
        .with_part("layers.{l}.attn.v", fused, part(2))
        .without_prefix("head", "embed_out")
        .without_prefix("head", "lm_head")
        .ignoring(&[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"]);
    Ok(Family { architecture, names })
}

/// GPT-NeoX Japanese: sequential blocks, no biases except on the output of the last attention.
pub(super) fn gpt_neox_japanese(config: &Config) -> Result<Family> {
    let width = config.size("hidden_size")?;
    let neurons = (width as f32 * config.number_or("intermediate_multiple_size", 4.0)?) as usize;
    let named = config
        .with("intermediate_size", neurons.into())
        .with("use_parallel_residual", false.into())
        .with("attention_bias", false.into())
        .with("tie_word_embeddings", config.flag_or("tie_word_embeddings", true)?.into())
        .with("rotary_pct", config.number_or("rotary_pct", 1.0)?.into());
    let mut family = gpt_neox(&named)?;
    family.each_dense(|dense| *dense = dense.with_bias(false));
    if let Some(attention) = family.architecture.layers.last_mut().and_then(|layer| layer.attention.as_mut()) {
        attention.out_bias = true;
    }
    family.names.prefixes = vec!["gpt_neox_japanese.", ""];
    family.names = family.names.with_bare(&[("layers.{l}.attn.out.bias", "layers.{l}.attention.dense_bias")]);
    family.architecture.modules =
        modules("gpt_neox_japanese", "layers", "attention", "mlp", "embed_in", "final_layer_norm", "embed_out");
    Ok(family)
}

/// Persimmon: sequential blocks, QK norm, squared ReLU.
pub(super) fn persimmon(config: &Config) -> Result<Family> {
    let named = config
        .with("use_parallel_residual", false.into())
        .with("hidden_act", config.text("hidden_act").unwrap_or("relu2").into())
        .with("rotary_pct", config.number_or("partial_rotary_factor", 0.5)?.into());
    let mut family = gpt_neox(&named)?;
    if config.flag_or("qk_layernorm", true)? {
        let norm = Norm::layer(config.number_or("layer_norm_eps", 1e-5)?);
        family.each_attention(|a| a.qk_norm = Some(norm));
    }
    let head_dim = family.head_dim();
    let part = |which: usize| StoredPart::per_head(which, 3, head_dim);
    let fused = "layers.{l}.self_attn.query_key_value";
    family.names = Names::new(&["model.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.attn.q_norm", "layers.{l}.self_attn.q_layernorm"),
            ("layers.{l}.attn.k_norm", "layers.{l}.self_attn.k_layernorm"),
            ("layers.{l}.attn.out", "layers.{l}.self_attn.dense"),
            ("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm"),
            ("layers.{l}.mlp.up", "layers.{l}.mlp.dense_h_to_4h"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp.dense_4h_to_h"),
            ("final_norm", "final_layernorm"),
        ])
        .with_part("layers.{l}.attn.q", fused, part(0))
        .with_part("layers.{l}.attn.k", fused, part(1))
        .with_part("layers.{l}.attn.v", fused, part(2))
        .without_prefix("head", "lm_head")
        .ignoring(&[".rotary_emb.inv_freq"]);
    family.architecture.modules =
        modules("model", "layers", "self_attn", "mlp", "embed_tokens", "final_layernorm", "lm_head");
    Ok(family)
}
