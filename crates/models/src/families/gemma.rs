//! Gemma 1 to 3 and VaultGemma: norms that apply `1 + weight`, scaled embeddings; from Gemma 2 on
//! post-norms, sliding windows and soft caps.

use super::{Family, activation, layer_windows, llama, modules};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::rope::{rope, rope_parameters_by_layer_type, ropes_by_layer_type};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Attention, Dense, Embedding, Gain, Head, Layer, Mlp, Modules, Norm, NormKind, Rope, RopeStyle,
};
use serde_json::json;

/// Gemma: Llama with scaled embeddings and norms that apply `1 + weight`.
pub(super) fn gemma1(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(16))]);
    let ropes = vec![rope(config, head_dim(config)?, RopeStyle::Halves)?];
    // Configurations have `hidden_act` or `hidden_activation`; "gelu" means the tanh approximation
    // here.
    let named = config.text("hidden_activation").or(config.text("hidden_act")).unwrap_or("gelu_pytorch_tanh");
    let named = if named == "gelu" { "gelu_pytorch_tanh" } else { named };
    let config = config.with("hidden_activation", named.into()).with("query_pre_attn_scalar", head_dim(config)?.into());
    let mut family = gemma(&config, ropes, |_| false, |_| 0, false)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (None, None));
    family.names = family
        .names
        .removing(&["layers.{l}.attn.post_norm", "layers.{l}.mlp.post_norm"])
        .replacing("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm");
    Ok(family)
}

/// Gemma 2: soft caps on scores and logits, sliding window in every other layer.
pub(super) fn gemma2(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("num_key_value_heads", json!(4)),
        ("sliding_window", json!(4096)),
    ]);
    let ropes = vec![rope(config, head_dim(config)?, RopeStyle::Halves)?];
    gemma(config, ropes, |layer| layer % 2 == 0, |_| 0, false)
}

/// VaultGemma: Gemma 2 without post-norms.
pub(super) fn vaultgemma(config: &Config) -> Result<Family> {
    let mut family = gemma2(config)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (None, None));
    Ok(family)
}

/// Gemma 3, language model: QK norm, five sliding-window layers per full one, a rotary base per
/// layer type.
pub(super) fn gemma3_text(config: &Config) -> Result<Family> {
    let config = &rope_parameters_by_layer_type(config, ("rope_theta", 1e6), ("rope_local_base_freq", 1e4))?
        .with_defaults([("num_key_value_heads", json!(4)), ("sliding_window", json!(4096))]);
    let ropes = ropes_by_layer_type(config, head_dim(config)?)?;
    let pattern = config.size_or("sliding_window_pattern", 6)?.max(1);
    if config.flag_or("use_bidirectional_attention", false)? {
        return Err(Error::unsupported(
            "`use_bidirectional_attention` makes tokens attend to later ones, so this is not a causal language model",
            "use a model without it",
        ));
    }
    let mut family = gemma(config, ropes, |layer| !(layer + 1).is_multiple_of(pattern), usize::from, true)?;
    // transformers reads `attn_logit_softcapping` but does not apply it.
    family.each_attention(|a| a.soft_cap = None);
    Ok(family)
}

/// Gemma 3, multimodal: the language model inside it.
pub(super) fn gemma3(config: &Config) -> Result<Family> {
    let text = config.part("text_config").ok_or_else(|| config.bad("text_config", "is missing"))?;
    // Some configurations omit these keys.
    let text = text.with_defaults([
        ("model_type", json!("gemma3_text")),
        ("hidden_size", json!(2304)),
        ("intermediate_size", json!(9216)),
        ("num_hidden_layers", json!(26)),
        ("num_attention_heads", json!(8)),
        ("max_position_embeddings", json!(131_072)),
    ]);
    let mut family = gemma3_text(&text)?;
    family.architecture.family = config.model_type()?.into();
    family.architecture.modules.layers = "model.language_model.layers".into();
    family.architecture.modules.final_norm = Some("model.language_model.norm".into());
    family.names.prefixes = vec!["language_model.model.", "model.language_model.", "model."];
    family.names.ignored_prefixes =
        vec!["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];
    family.names = family.names.without_prefix("head", "language_model.lm_head");
    Ok(family)
}

fn head_dim(config: &Config) -> Result<usize> {
    config.size_or("head_dim", 256)
}

/// Common part. `slides(layer)` is whether a layer has a sliding window, `rope_of(sliding)` the
/// index of its rotary embedding.
fn gemma(
    config: &Config,
    ropes: Vec<Rope>,
    slides: impl Fn(usize) -> bool,
    rope_of: impl Fn(bool) -> usize,
    qk_norm: bool,
) -> Result<Family> {
    let (width, depth, heads, head_dim) = (
        config.size("hidden_size")?,
        config.size("num_hidden_layers")?,
        config.size("num_attention_heads")?,
        head_dim(config)?,
    );
    // llama.cpp stores `1 + weight` in GGUF files.
    let gain = if config.flag_or("pellucid_gguf", false)? { Gain::Weight } else { Gain::OnePlusWeight };
    let norm = Norm { kind: NormKind::Rms, eps: config.number_or("rms_norm_eps", 1e-6)?, gain, bias: false };
    let bias = config.flag_or("attention_bias", false)?;
    let window = config.size_maybe("sliding_window")?;
    let windows = layer_windows(config, depth, window, slides)?;
    let mut layers = Vec::with_capacity(depth);
    let activation = activation(config, "hidden_activation", "gelu_pytorch_tanh")?;
    let mlp = Mlp::Dense(Dense::gated(config.size("intermediate_size")?, activation));
    let kv_heads = config.size_or("num_key_value_heads", heads)?;
    for window in windows {
        let attention = Attention {
            qkv_bias: bias,
            out_bias: bias,
            qk_norm: qk_norm.then_some(norm),
            rope: Some(rope_of(window.is_some())),
            scale: 1.0 / config.number_or("query_pre_attn_scalar", 256.0)?.sqrt(),
            soft_cap: config.number_maybe("attn_logit_softcapping")?,
            window,
            ..Attention::plain(heads, kv_heads, head_dim)
        };
        let layer = Layer::pre_norm(norm, attention, mlp.clone());
        layers.push(Layer { attn_post_norm: Some(norm), mlp_post_norm: Some(norm), ..layer });
    }
    let architecture = Architecture {
        family: config.model_type()?.into(),
        vocab: config.size_or("vocab_size", 262_208)?,
        width,
        context: config.size_maybe("max_position_embeddings")?,
        embedding: Embedding { scale: Some((width as f32).sqrt()), ..Embedding::default() },
        layers,
        final_norm: Some(norm),
        head: Head {
            tied: config.flag_or("tie_word_embeddings", true)?,
            soft_cap: config.number_maybe("final_logit_softcapping")?,
            ..Head::default()
        },
        ropes,
        // The embedding module returns scaled rows, so it is not an alias of the `embed` site.
        modules: Modules {
            embedding: None,
            ..modules("model", "layers", "self_attn", "mlp", "embed_tokens", "norm", "lm_head")
        },
    };
    let names = llama::names().replacing("layers.{l}.mlp.norm", "layers.{l}.pre_feedforward_layernorm").with(&[
        ("layers.{l}.attn.post_norm", "layers.{l}.post_attention_layernorm"),
        ("layers.{l}.mlp.post_norm", "layers.{l}.post_feedforward_layernorm"),
    ]);
    Ok(Family { architecture, names })
}
