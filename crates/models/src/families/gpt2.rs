//! GPT-2, GPT-BigCode, GPT-Neo and the first GPT: learned positions, layer norms.

use super::{Family, activation, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{AbsolutePositions, Attention, Dense, Embedding, Head, Layer, Mlp, Norm};
use serde_json::json;

/// GPT-2: fused QKV, matrices stored as `[inputs, outputs]`.
pub(super) fn gpt2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("n_positions", json!(1024))]);
    let (width, depth, heads, positions) =
        (config.size("n_embd")?, config.size("n_layer")?, config.size("n_head")?, config.size("n_positions")?);
    let head_dim = width / heads.max(1);
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let scale = if config.flag_or("scale_attn_weights", true)? { 1.0 / (head_dim as f32).sqrt() } else { 1.0 };
    let by_depth = config.flag_or("scale_attn_by_inverse_layer_idx", false)?;
    let activation = activation(config, "activation_function", "gelu_new")?;
    let mlp = Mlp::Dense(Dense::plain(config.size_or("n_inner", 4 * width)?, activation).with_bias(true));
    let layer = |index: usize| {
        let scale = if by_depth { scale / (index + 1) as f32 } else { scale };
        let attention = Attention { qkv_bias: true, out_bias: true, scale, ..Attention::plain(heads, heads, head_dim) };
        Layer::pre_norm(norm, attention, mlp.clone())
    };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(positions),
        embedding: Embedding {
            positions: Some(AbsolutePositions::Learned { rows: positions, offset: 0 }),
            ..Embedding::default()
        },
        layers: (0..depth).map(layer).collect(),
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        modules: modules("transformer", "h", "attn", "mlp", "wte", "ln_f", "lm_head"),
    };
    let part = |index: usize| StoredPart::rows(index * width, 3 * width);
    let names = common_names()
        .with_transposed(&[
            ("layers.{l}.attn.out", "h.{l}.attn.c_proj"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.c_fc"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.c_proj"),
        ])
        .with_transposed_part("layers.{l}.attn.q", "h.{l}.attn.c_attn", part(0))
        .with_transposed_part("layers.{l}.attn.k", "h.{l}.attn.c_attn", part(1))
        .with_transposed_part("layers.{l}.attn.v", "h.{l}.attn.c_attn", part(2));
    Ok(Family { architecture, names })
}

/// GPT-BigCode: GPT-2 with multi-query attention, or QKV fused head by head.
pub(super) fn gpt_bigcode(config: &Config) -> Result<Family> {
    let mut family = gpt2(config)?;
    let (width, heads) = (config.size("n_embd")?, config.size("n_head")?);
    let head_dim = width / heads.max(1);
    let shared = config.flag_or("multi_query", true)?;
    if shared {
        family.each_attention(|a| a.kv_heads = 1);
    }
    let total = width + 2 * head_dim;
    let part = |which: usize| match (shared, which) {
        (false, _) => StoredPart::per_head(which, 3, head_dim),
        (true, 0) => StoredPart::rows(0, total),
        (true, _) => StoredPart::rows(width + (which - 1) * head_dim, total),
    };
    let names = common_names().with(&[
        ("layers.{l}.attn.out", "h.{l}.attn.c_proj"),
        ("layers.{l}.mlp.up", "h.{l}.mlp.c_fc"),
        ("layers.{l}.mlp.down", "h.{l}.mlp.c_proj"),
    ]);
    family.names = names
        .with_part("layers.{l}.attn.q", "h.{l}.attn.c_attn", part(0))
        .with_part("layers.{l}.attn.k", "h.{l}.attn.c_attn", part(1))
        .with_part("layers.{l}.attn.v", "h.{l}.attn.c_attn", part(2));
    Ok(family)
}

/// GPT-Neo: unscaled scores, no biases on Q, K and V, sliding window in every other layer.
pub(super) fn gpt_neo(config: &Config) -> Result<Family> {
    let keys = [
        ("n_embd", "hidden_size"),
        ("n_layer", "num_layers"),
        ("n_head", "num_heads"),
        ("n_positions", "max_position_embeddings"),
    ];
    let config = &config.with_defaults([("max_position_embeddings", json!(2048))]);
    let mut renamed = config.with("n_inner", config.get("intermediate_size").cloned().unwrap_or_default());
    for (ours, theirs) in keys {
        renamed = renamed.with(ours, config.size(theirs)?.into());
    }
    let mut family = gpt2(&renamed)?;
    let (window, kinds) = (config.size_or("window_size", 256)?, config.texts("attention_layers")?.unwrap_or_default());
    let mut index = 0;
    family.each_attention(|a| {
        a.qkv_bias = false;
        a.scale = 1.0;
        let local = kinds.get(index).map_or(index % 2 == 1, |kind| *kind == "local");
        a.window = local.then_some(window);
        index += 1;
    });
    family.names = common_names()
        .with(&[
            ("layers.{l}.attn.q", "h.{l}.attn.attention.q_proj"),
            ("layers.{l}.attn.k", "h.{l}.attn.attention.k_proj"),
            ("layers.{l}.attn.v", "h.{l}.attn.attention.v_proj"),
            ("layers.{l}.attn.out", "h.{l}.attn.attention.out_proj"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.c_fc"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.c_proj"),
        ])
        .ignoring(&[".attn.attention.bias", ".attn.attention.masked_bias"]);
    Ok(family)
}

/// The first GPT: post-residual norms, no final norm.
pub(super) fn openai_gpt(config: &Config) -> Result<Family> {
    // This model's `gelu` is the tanh approximation.
    let named = match config.text("afn").unwrap_or("gelu") {
        "gelu" => "gelu_new",
        other => other,
    };
    let config = config.with_defaults([("n_positions", json!(512))]);
    let mut family = gpt2(&config.with("activation_function", named.into()))?;
    family.each(|layer| {
        (layer.attn_post_residual_norm, layer.mlp_post_residual_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    });
    family.architecture.final_norm = None;
    family.architecture.modules.embedding = Some("transformer.tokens_embed".into());
    family.architecture.modules.final_norm = None;
    family.names = family
        .names
        .replacing("embed", "tokens_embed")
        .replacing("pos_embed", "positions_embed")
        .removing(&["layers.{l}.attn.norm", "layers.{l}.mlp.norm", "final_norm"])
        .with(&[("layers.{l}.attn.stream_norm", "h.{l}.ln_1"), ("layers.{l}.mlp.stream_norm", "h.{l}.ln_2")])
        .ignoring(&["position_ids"]);
    Ok(family)
}

/// Names that all of them share: embeddings, norms, head.
fn common_names() -> Names {
    Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "wte"),
            ("pos_embed", "wpe"),
            ("layers.{l}.attn.norm", "h.{l}.ln_1"),
            ("layers.{l}.mlp.norm", "h.{l}.ln_2"),
            ("final_norm", "ln_f"),
        ])
        .without_prefix("head", "lm_head")
        .ignoring(&[".attn.bias", ".attn.masked_bias"])
}
