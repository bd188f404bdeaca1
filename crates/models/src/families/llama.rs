//! Llama, Mistral, Mixtral, Qwen 2 and 3: RMS pre-norms, rotary positions, gated MLPs.
//!
//! Many other families start from [`llama_like`] and change single fields.

use super::experts::Mixture;
use super::{Family, activation, layer_windows, modules};
use crate::config::Config;
use crate::error::Result;
use crate::names::Names;
use crate::rope::rope;
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Attention, Dense, Embedding, Head, Layer, LongRope, Mlp, Norm, Rope, RopeStyle, Routing,
};
use serde_json::json;

/// Llama: optional biases in attention and MLP.
pub(super) fn llama(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let (attention, mlp) = (config.flag_or("attention_bias", false)?, config.flag_or("mlp_bias", false)?);
    family.set_attention_bias(attention);
    family.each_dense(|dense| *dense = dense.with_bias(mlp));
    Ok(family)
}

/// Mistral: sliding-window attention in every layer.
pub(super) fn mistral(config: &Config) -> Result<Family> {
    mistral_like(&config.with_defaults([("num_key_value_heads", json!(8)), ("sliding_window", json!(4096))]))
}

/// Mistral without its defaults: no sliding window unless the configuration has one.
pub(super) fn mistral_like(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |_| true)?;
    Ok(family)
}

/// Qwen 2: biases on Q, K and V; optional sliding window in the upper layers.
pub(super) fn qwen2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(32)), ("sliding_window", json!(4096))]);
    let mut family = llama_like(config)?;
    family.each_attention(|a| a.qkv_bias = true);
    set_qwen_sliding_window(config, &mut family)?;
    Ok(family)
}

/// Qwen 3: per-head QK norm, no biases by default.
pub(super) fn qwen3(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(32)),
        ("sliding_window", json!(4096)),
    ]);
    qwen3_like(config)
}

/// Qwen 3 without its default sizes.
pub(super) fn qwen3_like(config: &Config) -> Result<Family> {
    let mut family = llama_like(config)?;
    let (bias, norm) = (config.flag_or("attention_bias", false)?, Norm::rms(config.number_or("rms_norm_eps", 1e-6)?));
    family.set_attention_bias(bias);
    family.each_attention(|a| a.qk_norm = Some(norm));
    set_qwen_sliding_window(config, &mut family)?;
    Ok(family)
}

/// Mixtral: Mistral with experts in every layer.
pub(super) fn mixtral(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("num_local_experts", json!(8)),
        ("num_experts_per_tok", json!(2)),
    ]);
    let mut family = mistral_like(config)?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing::softmax(true),
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    family.names = mixture.mixtral_names(family.names);
    Ok(family)
}

/// The base of all Llama-like families: RMS pre-norms, rotary positions, gated dense MLPs, no
/// biases.
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

/// Context length: `max_position_embeddings`, times the factor of dynamic rotary scaling.
fn context(config: &Config, rope: &Rope) -> Result<Option<usize>> {
    let factor = match rope.long {
        Some(LongRope::Dynamic { factor, .. }) => factor.max(1.0),
        _ => 1.0,
    };
    Ok(config.size_maybe("max_position_embeddings")?.map(|n| (n as f32 * factor) as usize))
}

/// Llama's module names, which many families share.
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
        .without_prefix("head", "lm_head")
        .ignoring(&[".rotary_emb.inv_freq"])
}

/// Sets the sliding window of each layer, by `layer_types` if present, else where `slides(layer)`
/// holds.
pub(super) fn set_sliding_window(
    config: &Config,
    family: &mut Family,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<()> {
    let layers = &mut family.architecture.layers;
    let windows = layer_windows(config, layers.len(), window, slides)?;
    for (layer, window) in layers.iter_mut().zip(windows) {
        layer.attention = layer.attention.take().map(|a| Attention { window, ..a });
    }
    Ok(())
}

/// Qwen's rule: with `use_sliding_window`, the layers from `max_window_layers` on have a sliding
/// window.
fn set_qwen_sliding_window(config: &Config, family: &mut Family) -> Result<()> {
    let first = config.size_or("max_window_layers", 28)?;
    let window = if config.flag_or("use_sliding_window", false)? { config.size_maybe("sliding_window")? } else { None };
    set_sliding_window(config, family, window, |layer| layer >= first)
}
