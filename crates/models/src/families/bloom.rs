//! BLOOM: ALiBi, a norm on the embeddings, QKV fused head by head.

use super::Family;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Activation, Alibi, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm, Skip,
};

pub(super) fn bloom(config: &Config) -> Result<Family> {
    let size = |names: [&str; 2]| config.size_maybe(names[0]).and_then(|n| n.map_or_else(|| config.size(names[1]), Ok));
    let (width, depth, heads) = (
        size(["hidden_size", "n_embed"])?,
        size(["n_layer", "num_hidden_layers"])?,
        size(["n_head", "num_attention_heads"])?,
    );
    let head_dim = width / heads.max(1);
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let attention = Attention {
        qkv_bias: true,
        out_bias: true,
        alibi: Some(Alibi { slopes: alibi_slopes(heads), bf16_scale: None }),
        ..Attention::plain(heads, heads, head_dim)
    };
    let mlp = Mlp::Dense(Dense::plain(4 * width, Activation::GeluTanh).with_bias(true));
    let normed = config.flag_or("apply_residual_connection_post_layernorm", false)?;
    let skip = if normed { Skip::Normed { attn: 1.0, mlp: 1.0 } } else { Skip::Identity };
    let layer = Layer { skip, ..Layer::pre_norm(norm, attention, mlp) };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: None,
        embedding: Embedding { norm: Some(norm), ..Embedding::default() },
        layers: vec![layer; depth],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        // The sublayer modules return the residual stream, not their own output, so they are not
        // aliases of sites.
        modules: Modules {
            layers: "transformer.h".into(),
            embedding: Some("transformer.word_embeddings".into()),
            final_norm: Some("transformer.ln_f".into()),
            head: Some("lm_head".into()),
            ..Modules::default()
        },
    };
    let part = |which: usize| StoredPart::per_head(which, 3, head_dim);
    let fused = "h.{l}.self_attention.query_key_value";
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "word_embeddings"),
            ("embed.norm", "word_embeddings_layernorm"),
            ("layers.{l}.attn.norm", "h.{l}.input_layernorm"),
            ("layers.{l}.attn.out", "h.{l}.self_attention.dense"),
            ("layers.{l}.mlp.norm", "h.{l}.post_attention_layernorm"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.dense_h_to_4h"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.dense_4h_to_h"),
            ("final_norm", "ln_f"),
        ])
        .with_part("layers.{l}.attn.q", fused, part(0))
        .with_part("layers.{l}.attn.k", fused, part(1))
        .with_part("layers.{l}.attn.v", fused, part(2))
        .without_prefix("head", "lm_head");
    Ok(Family { architecture, names })
}

/// ALiBi slopes: a geometric series. If the number of heads is not a power of two, the remaining
/// heads use the odd terms of the series for twice as many heads.
pub(super) fn alibi_slopes(heads: usize) -> Vec<f32> {
    let whole = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let base = |n: usize| 2f32.powf(-(2f32.powf(-((n as f32).log2() - 3.0))));
    let first = (1..=whole).map(|i| base(whole).powi(i as i32));
    let rest = (0..heads - whole).map(|i| base(2 * whole).powi(2 * i as i32 + 1));
    first.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::alibi_slopes;

    #[test]
    fn slopes_halve_for_eight_heads_and_interleave_for_twelve() {
        assert_eq!(alibi_slopes(8)[..3], [0.5, 0.25, 0.125]);
        let twelve = alibi_slopes(12);
        assert_eq!(twelve.len(), 12);
        assert!((twelve[8] - 0.5f32.sqrt()).abs() < 1e-6, "{twelve:?}");
    }
}
