//! CTRL: sinusoidal positions, scaled embeddings, a tied head with a bias.

use super::Family;
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    AbsolutePositions, Activation, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm,
};

pub(super) fn ctrl(config: &Config) -> Result<Family> {
    let (width, heads) = (config.size("n_embd")?, config.size("n_head")?);
    // transformers hard-codes this epsilon.
    let norm = Norm::layer(1e-6);
    let attention =
        Attention { qkv_bias: true, out_bias: true, ..Attention::plain(heads, heads, width / heads.max(1)) };
    let mlp = Dense::plain(config.size_or("dff", 8192)?, Activation::Relu).with_bias(true);
    let frequencies = (0..width / 2).map(|i| 1.0 / 10_000f32.powf(2.0 * i as f32 / width as f32)).collect();
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: config.size_maybe("n_positions")?,
        embedding: Embedding {
            scale: Some((width as f32).sqrt()),
            positions: Some(AbsolutePositions::Sinusoidal { frequencies, offset: 0 }),
            ..Embedding::default()
        },
        layers: vec![Layer::pre_norm(norm, attention, Mlp::Dense(mlp)); config.size("n_layer")?],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, bias: true, ..Head::default() },
        ropes: vec![],
        modules: Modules {
            layers: "transformer.h".into(),
            attention: Some("multi_head_attention".into()),
            mlp: Some("ffn".into()),
            embedding: Some("transformer.w".into()),
            final_norm: Some("transformer.layernorm".into()),
            head: Some("lm_head".into()),
        },
    };
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "w"),
            ("layers.{l}.attn.norm", "h.{l}.layernorm1"),
            ("layers.{l}.attn.q", "h.{l}.multi_head_attention.Wq"),
            ("layers.{l}.attn.k", "h.{l}.multi_head_attention.Wk"),
            ("layers.{l}.attn.v", "h.{l}.multi_head_attention.Wv"),
            ("layers.{l}.attn.out", "h.{l}.multi_head_attention.dense"),
            ("layers.{l}.mlp.norm", "h.{l}.layernorm2"),
            ("layers.{l}.mlp.up", "h.{l}.ffn.0"),
            ("layers.{l}.mlp.down", "h.{l}.ffn.2"),
            ("final_norm", "layernorm"),
        ])
        .without_prefix("head", "lm_head");
    Ok(Family { architecture, names })
}
