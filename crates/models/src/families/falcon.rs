//! Falcon, with its three layouts of fused QKV, and MPT.

use super::bloom::alibi_slopes;
use super::{Family, activation, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Names, StoredPart};
use crate::rope::rope;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Activation, Alibi, Attention, Dense, Embedding, Head, Layer, Mlp, Modules, Norm, RopeStyle,
};

/// Falcon: rotary positions or ALiBi, parallel blocks with one or two norms, three layouts of fused
/// QKV.
pub(super) fn falcon(config: &Config) -> Result<Family> {
    let size = |names: [&str; 2]| config.size_maybe(names[0]).and_then(|n| n.map_or_else(|| config.size(names[1]), Ok));
    let (width, depth, heads) = (
        config.size("hidden_size")?,
        size(["num_hidden_layers", "n_layer"])?,
        size(["num_attention_heads", "n_head"])?,
    );
    let head_dim = width / heads.max(1);
    let (grouped, shared) = (config.flag_or("new_decoder_architecture", false)?, config.flag_or("multi_query", true)?);
    let listed = config.size_maybe("num_kv_heads")?.or(config.size_maybe("n_head_kv")?).unwrap_or(heads);
    let kv_heads = if grouped || !shared { listed } else { 1 };
    let (alibi, bias) = (config.flag_or("alibi", false)?, config.flag_or("bias", false)?);
    let norm = Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?);
    let attention = Attention {
        qkv_bias: bias,
        out_bias: bias,
        rope: (!alibi).then_some(0),
        // The biases are computed in bfloat16 and scaled like the scores.
        alibi: alibi.then(|| Alibi { slopes: alibi_slopes(heads), bf16_scale: Some(1.0 / (head_dim as f32).sqrt()) }),
        ..Attention::plain(heads, kv_heads, head_dim)
    };
    let activation = activation(config, "activation", "gelu")?;
    let mlp = Dense::plain(config.size_or("ffn_hidden_size", 4 * width)?, activation).with_bias(bias);
    let parallel = grouped || config.flag_or("parallel_attn", true)?;
    let norms = config.size_or("num_ln_in_parallel_attn", if grouped { 2 } else { 1 })?;
    let two = !parallel || (grouped && norms == 2);
    let layer = Layer { parallel, mlp_norm: two.then_some(norm), ..Layer::pre_norm(norm, attention, Mlp::Dense(mlp)) };
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: if alibi { None } else { config.size_maybe("max_position_embeddings")? },
        embedding: Embedding::default(),
        layers: vec![layer; depth],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: if alibi { vec![] } else { vec![rope(config, head_dim, RopeStyle::Halves)?] },
        modules: modules("transformer", "h", "self_attention", "mlp", "word_embeddings", "ln_f", "lm_head"),
    };
    let fused = "h.{l}.self_attention.query_key_value";
    let group = heads / kv_heads.max(1);
    let part = |which: usize| match (grouped, shared) {
        // Fused per KV head: its queries, its key, its value.
        (true, _) => {
            let (start, len) =
                if which == 0 { (0, group * head_dim) } else { ((group + which - 1) * head_dim, head_dim) };
            StoredPart::grouped(start, len, (group + 2) * head_dim)
        }
        (false, true) => {
            StoredPart::rows(if which == 0 { 0 } else { width + (which - 1) * head_dim }, width + 2 * head_dim)
        }
        (false, false) => StoredPart::per_head(which, 3, head_dim),
    };
    let (attn_norm, mlp_norm) =
        if parallel && two { ("ln_attn", "ln_mlp") } else { ("input_layernorm", "post_attention_layernorm") };
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "word_embeddings"),
            ("layers.{l}.attn.norm", &format!("h.{{l}}.{attn_norm}")),
            ("layers.{l}.mlp.norm", &format!("h.{{l}}.{mlp_norm}")),
            ("layers.{l}.attn.out", "h.{l}.self_attention.dense"),
            ("layers.{l}.mlp.up", "h.{l}.mlp.dense_h_to_4h"),
            ("layers.{l}.mlp.down", "h.{l}.mlp.dense_4h_to_h"),
            ("final_norm", "ln_f"),
        ])
        .with_part("layers.{l}.attn.q", fused, part(0))
        .with_part("layers.{l}.attn.k", fused, part(1))
        .with_part("layers.{l}.attn.v", fused, part(2))
        .without_prefix("head", "lm_head")
        .ignoring(&[".rotary_emb.inv_freq", ".maybe_rotary.inv_freq"]);
    Ok(Family { architecture, names })
}

/// MPT: ALiBi, layer norms without biases, clipped QKV.
pub(super) fn mpt(config: &Config) -> Result<Family> {
    let (width, depth, heads) = (config.size("d_model")?, config.size("n_layers")?, config.size("n_heads")?);
    let head_dim = width / heads.max(1);
    let details = config.part("attn_config").unwrap_or_else(|| config.clone());
    let norm = Norm { bias: false, ..Norm::layer(config.number_or("layer_norm_epsilon", 1e-5)?) };
    let plain = Attention::plain(heads, heads, head_dim);
    let attention = Attention {
        clip: details.number_maybe("clip_qkv")?.filter(|&clip| clip != 0.0),
        scale: details.number_maybe("softmax_scale")?.unwrap_or(plain.scale),
        alibi: Some(Alibi { slopes: mpt_slopes(heads, details.number_or("alibi_bias_max", 8.0)?), bf16_scale: None }),
        ..plain
    };
    // transformers ignores `expansion_ratio`: the MLP is always 4 × d_model wide.
    let layer = Layer::pre_norm(norm, attention, Mlp::Dense(Dense::plain(4 * width, Activation::Gelu)));
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: None,
        embedding: Embedding::default(),
        layers: vec![layer; depth],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", true)?, ..Head::default() },
        ropes: vec![],
        // The MLP module returns the residual stream, not its own output, so it is not an alias of
        // a site.
        modules: Modules { mlp: None, ..modules("transformer", "blocks", "attn", "ffn", "wte", "norm_f", "lm_head") },
    };
    let fused = "blocks.{l}.attn.Wqkv";
    let names = Names::new(&["transformer.", ""])
        .with(&[
            ("embed", "wte"),
            ("layers.{l}.attn.norm", "blocks.{l}.norm_1"),
            ("layers.{l}.mlp.norm", "blocks.{l}.norm_2"),
            ("layers.{l}.attn.out", "blocks.{l}.attn.out_proj"),
            ("layers.{l}.mlp.up", "blocks.{l}.ffn.up_proj"),
            ("layers.{l}.mlp.down", "blocks.{l}.ffn.down_proj"),
            ("final_norm", "norm_f"),
        ])
        .with_part("layers.{l}.attn.q", fused, StoredPart::rows(0, 3 * width))
        .with_part("layers.{l}.attn.k", fused, StoredPart::rows(width, 3 * width))
        .with_part("layers.{l}.attn.v", fused, StoredPart::rows(2 * width, 3 * width))
        .without_prefix("head", "lm_head");
    Ok(Family { architecture, names })
}

/// MPT's ALiBi slopes: those for the next power of two; if the number of heads is not one, the odd
/// ones come first.
fn mpt_slopes(heads: usize, bias_max: f32) -> Vec<f32> {
    let whole = heads.next_power_of_two();
    let slope = |i: usize| 2f32.powf(-((i + 1) as f32 * bias_max / whole as f32));
    if heads.is_power_of_two() {
        return (0..heads).map(slope).collect();
    }
    (1..whole).step_by(2).chain((0..whole).step_by(2)).map(slope).take(heads).collect()
}
