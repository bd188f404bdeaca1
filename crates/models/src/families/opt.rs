//! OPT: learned positions with an offset of 2, pre-norms or post-residual norms, embeddings that
//! may be narrower than the residual stream.

use super::{Family, activation};
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    AbsolutePositions, Attention, Dense, Embedding, Gain, Head, Layer, Mlp, Modules, Norm, NormKind,
};

/// Rows of the position table before position 0.
const OFFSET: usize = 2;

pub(super) fn opt(config: &Config) -> Result<Family> {
    let (width, depth, heads) =
        (config.size("hidden_size")?, config.size("num_hidden_layers")?, config.size("num_attention_heads")?);
    let (head_dim, positions) = (width / heads.max(1), config.size_or("max_position_embeddings", 2048)?);
    let learned = config.flag_or("layer_norm_elementwise_affine", true)?;
    let norm =
        Norm { kind: NormKind::Layer, eps: 1e-5, gain: if learned { Gain::Weight } else { Gain::None }, bias: learned };
    let pre_norm = config.flag_or("do_layer_norm_before", true)?;
    let bias = config.flag_or("enable_bias", true)?;
    let attention = Attention { qkv_bias: bias, out_bias: bias, ..Attention::plain(heads, heads, head_dim) };
    let activation = activation(config, "activation_function", "relu")?;
    let mut layer =
        Layer::pre_norm(norm, attention, Mlp::Dense(Dense::plain(config.size("ffn_dim")?, activation).with_bias(bias)));
    if !pre_norm {
        (layer.attn_post_residual_norm, layer.mlp_post_residual_norm) = (layer.attn_norm.take(), layer.mlp_norm.take());
    }
    let table_width = config.size_maybe("word_embed_proj_dim")?.filter(|&table| table != width);
    let has_final_norm = pre_norm && !config.flag_or("_remove_final_layer_norm", false)?;
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: Some(positions),
        embedding: Embedding {
            table_width,
            positions: Some(AbsolutePositions::Learned { rows: positions + OFFSET, offset: OFFSET }),
            ..Embedding::default()
        },
        layers: vec![layer; depth],
        final_norm: has_final_norm.then_some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, table_width, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: "model.decoder.layers".into(),
            attention: Some("self_attn".into()),
            mlp: None,
            embedding: Some("model.decoder.embed_tokens".into()),
            final_norm: Some("model.decoder.final_layer_norm".into()),
            head: Some("lm_head".into()),
        },
    };
    // The stored names are the same for pre-norms and post-residual norms.
    let (attn_norm, mlp_norm) =
        if pre_norm { ("attn.norm", "mlp.norm") } else { ("attn.stream_norm", "mlp.stream_norm") };
    let names = Names::new(&["model.decoder.", "decoder."])
        .with(&[
            ("embed", "embed_tokens"),
            ("embed.project", "project_in"),
            ("pos_embed", "embed_positions"),
            ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
            ("layers.{l}.attn.k", "layers.{l}.self_attn.k_proj"),
            ("layers.{l}.attn.v", "layers.{l}.self_attn.v_proj"),
            ("layers.{l}.attn.out", "layers.{l}.self_attn.out_proj"),
            ("layers.{l}.mlp.up", "layers.{l}.fc1"),
            ("layers.{l}.mlp.down", "layers.{l}.fc2"),
            (&format!("layers.{{l}}.{attn_norm}"), "layers.{l}.self_attn_layer_norm"),
            (&format!("layers.{{l}}.{mlp_norm}"), "layers.{l}.final_layer_norm"),
            ("final_norm", "final_layer_norm"),
            ("head.project", "project_out"),
        ])
        .without_prefix("head", "lm_head");
    Ok(Family { architecture, names })
}
