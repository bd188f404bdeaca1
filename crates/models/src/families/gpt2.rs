//! GPT-2: learned positions, layer norms, fused and transposed projections.

use super::{Family, activation, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, Part};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{Attention, Embedding, Head, Layer, LearnedPositions, Mlp, Norm};

pub(super) fn gpt2(config: &Config) -> Result<Family> {
    let (width, depth, heads, positions) =
        (config.size("n_embd")?, config.size("n_layer")?, config.size("n_head")?, config.size("n_positions")?);
    let head_dim = width / heads.max(1);
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let scale = if config.flag_or("scale_attn_weights", true)? { 1.0 / (head_dim as f32).sqrt() } else { 1.0 };
    let by_depth = config.flag_or("scale_attn_by_inverse_layer_idx", false)?;
    let mlp = Mlp::Plain {
        width: config.size_or("n_inner", 4 * width)?,
        activation: activation(config, "activation_function", "gelu_new")?,
        bias: true,
    };
    let layer = |index: usize| Layer {
        parallel: false,
        attn_norm: Some(norm),
        attention: Attention {
            heads,
            kv_heads: heads,
            head_dim,
            value_dim: head_dim,
            qkv_bias: true,
            out_bias: true,
            qk_norm: None,
            qk_norm_flat: false,
            rope: None,
            scale: if by_depth { scale / (index + 1) as f32 } else { scale },
            soft_cap: None,
            window: None,
            alibi: None,
        },
        attn_post_norm: None,
        attn_stream_norm: None,
        mlp_norm: Some(norm),
        mlp: mlp.clone(),
        mlp_post_norm: None,
        mlp_stream_norm: None,
        residual_scale: None,
    };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(positions),
        embedding: Embedding {
            positions: Some(LearnedPositions { rows: positions, offset: 0 }),
            ..Embedding::default()
        },
        layers: (0..depth).map(layer).collect(),
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        modules: modules("transformer", "h", "attn", "mlp", "wte", "ln_f", "lm_head"),
    };
    let part = |index: usize| Part::Rows { start: index * width, total: 3 * width };
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "wte"),
            ("pos_embed", "wpe"),
            ("layers.{l}.attn.norm", "h.{l}.ln_1"),
            ("layers.{l}.mlp.norm", "h.{l}.ln_2"),
            ("final_norm", "ln_f"),
        ])
        .with_transposed(&[
            ("layers.{l}.attn.out", "h.{l}.attn.c_proj"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.c_fc"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.c_proj"),
        ])
        .with_part("layers.{l}.attn.q", "h.{l}.attn.c_attn", part(0), true)
        .with_part("layers.{l}.attn.k", "h.{l}.attn.c_attn", part(1), true)
        .with_part("layers.{l}.attn.v", "h.{l}.attn.c_attn", part(2), true)
        .outside("head", "lm_head")
        .ignoring(&[".attn.bias", ".attn.masked_bias"]);
    Ok(Family { architecture, names })
}
