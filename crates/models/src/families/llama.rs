//! Llama and its near relations: root-mean-square norms before each sublayer, rotary positions, gated MLPs.

use super::experts::Mixture;
use super::{Family, activation, modules, windows};
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use crate::rope::rope;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Attention, Dense, Embedding, Head, Layer, LongRope, Mlp, Norm, Rope, RopeStyle, Routing,
};
use serde_json::json;

/// Llama: optional biases everywhere.
pub(super) fn llama(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let (attention, mlp) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    family.set_attention_bias(attention);
    family.each_dense(|dense| *dense = dense.with_bias(mlp));
    Ok(family)
}

/// Mistral: every layer slides where a window is given.
pub(super) fn mistral(config: &Config) -> Result<Family> {
    sliding(&config.with_defaults([("num_key_value_heads", json!(8)), ("sliding_window", json!(4096))]))
}

/// Mistral without a window where none is given.
pub(super) fn sliding(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    slide(config, &mut family, config.size_maybe("sliding_window")?, |_| true)?;
    Ok(family)
}

/// Qwen 2: biases on queries, keys and values; the upper layers may slide.
pub(super) fn qwen2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(32)), ("sliding_window", json!(4096))]);
    let mut family = llama_like(config)?;
    family.each_attention(|a| a.qkv_bias = true);
    slide_upper(config, &mut family)?;
    Ok(family)
}

/// Qwen 3: a norm on each head's queries and keys instead of biases.
pub(super) fn qwen3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(32)),
        ("sliding_window", json!(4096)),
    ]);
    qwen3_like(config)
}

/// Qwen 3 with the sizes that a configuration gives.
pub(super) fn qwen3_like(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let (bias, norm) = (config.flag_or("attention_bias", false)?, Norm::rms(config.number_or("rms_norm_eps", 1e-6)?));
    family.set_attention_bias(bias);
    family.each_attention(|a| a.qk_norm = Some(norm));
    slide_upper(config, &mut family)?;
    Ok(family)
}

/// Mixtral: Mistral with experts.
pub(super) fn mixtral(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
    ]);
    let mut family = sliding(config)?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        chosen: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing::softmax(true),
        shared: 0,
    };
    mixture.put_everywhere(&mut family);
    family.names = mixture.numbered_names(family.names);
    Ok(family)
}

/// What all of them share.
pub(super) fn llama_like(config: &Config) -> Result<Family> {
    let (width, layers, heads) =
        (config.size("hidden_size")?, config.size("num_hidden_layers")?, config.size("num_attention_heads")?);
    let head_dim = config.size_or("head_dim", width / heads.max(1))?;
    let norm = Norm::rms(config.number_or("rms_norm_eps", 1e-6)?);
    let kv_heads = config.size_or("num_key_value_heads", heads)?;
    let attention = Attention { rope: Some(0), ..Attention::plain(heads, kv_heads, head_dim) };
    let activation = activation(config, "hidden_act", "silu")?;
    let layer =
        Layer::pre_norm(norm, attention, Mlp::Dense(Dense::gated(config.size("intermediate_size")?, activation)));
    let rope = rope(config, head_dim, RopeStyle::Halves)?;
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size("vocab_size")?,
        width,
        context: context(config, &rope)?,
        embedding: Embedding::default(),
        layers: vec![layer; layers],
        final_norm: Some(norm),
        head: Head { tied: config.flag_or("tie_word_embeddings", false)?, ..Head::default() },
        ropes: vec![rope],
        modules: modules("model", "layers", "self_attn", "mlp", "embed_tokens", "norm", "lm_head"),
    };
    Ok(Family { architecture, names: names() })
}

/// The positions that a model can address: as many as it says, times what a dynamic rotation stretches them by.
fn context(config: &Config, rope: &Rope) -> Result<Option<usize>> {
    let stretch = match rope.long {
        Some(LongRope::Dynamic { factor, .. }) => factor.max(1.0),
        _ => 1.0,
    };
    Ok(config.size_maybe("max_position_embeddings")?.map(|n| (n as f32 * stretch) as usize))
}

/// The names that Llama gave its modules, and half the field after it.
pub(super) fn names() -> Names {
    Names::new(&["model.", ""])
        .with(&[
            ("embed", "embed_tokens"),
            ("final_norm", "norm"),
            ("layers.{l}.attn.norm", "layers.{l}.input_layernorm"),
            ("layers.{l}.attn.q", "layers.{l}.self_attn.q_proj"),
            ("layers.{l}.attn.k", "layers.{l}.self_attn.k_proj"),
            ("layers.{l}.attn.v", "layers.{l}.self_attn.v_proj"),
            ("layers.{l}.attn.q_norm", "layers.{l}.self_attn.q_norm"),
            ("layers.{l}.attn.k_norm", "layers.{l}.self_attn.k_norm"),
            ("layers.{l}.attn.out", "layers.{l}.self_attn.o_proj"),
            ("layers.{l}.mlp.gate", "layers.{l}.mlp.gate_proj"),
            ("layers.{l}.mlp.up", "layers.{l}.mlp.up_proj"),
            ("layers.{l}.mlp.down", "layers.{l}.mlp.down_proj"),
            ("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm"),
        ])
        .outside("head", "lm_head")
        .ignoring(&[".rotary_emb.inv_freq"])
}

pub(super) fn slide(
    config: &Config,
    family: &mut Family,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<()> {
    let layers = &mut family.architecture.layers;
    let windows = windows(config, layers.len(), window, slides)?;
    for (layer, window) in layers.iter_mut().zip(windows) {
        layer.attention = layer.attention.take().map(|a| Attention { window, ..a });
    }
    Ok(())
}

/// Qwen's rule: with `use_sliding_window`, the layers from `max_window_layers` on slide.
fn slide_upper(config: &Config, family: &mut Family) -> Result<()> {
    let first = config.size_or("max_window_layers", 28)?;
    let window = if config.flag_or("use_sliding_window", false)? { config.size_maybe("sliding_window")? } else { None };
    slide(config, family, window, |layer| layer >= first)
}
