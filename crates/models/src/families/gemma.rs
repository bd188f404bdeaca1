//! Gemma 2 and 3: four norms a block whose gains are stored as their distance from one, scaled embeddings, windows, soft caps.

use super::{Family, activation, llama, modules, windows};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::rope::{by_layer_type, parts_by_layer_type, rope};
use pellucid_engine::Architecture;
use pellucid_engine::architecture::{
    Attention, Dense, Embedding, Gain, Head, Layer, Mlp, Modules, Norm, NormKind, Rope, RopeStyle,
};
use serde_json::json;

/// Gemma: Llama with scaled embeddings and gains stored as their distance from one.
pub(super) fn gemma1(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([("num_key_value_heads", json!(16))]);
    let ropes = vec![rope(config, head_dim(config)?, RopeStyle::Halves)?];
    // The class reads `hidden_act`; older configurations name the same function in `hidden_activation`.
    let named = config.text("hidden_activation").or(config.text("hidden_act")).unwrap_or("gelu_pytorch_tanh");
    let named = if named == "gelu" { "gelu_pytorch_tanh" } else { named };
    let config = config.with("hidden_activation", named.into()).with("query_pre_attn_scalar", head_dim(config)?.into());
    let mut family = gemma(&config, ropes, |_| false, |_| 0, false)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (None, None));
    family.names = family
        .names
        .without(&["layers.{l}.attn.post_norm", "layers.{l}.mlp.post_norm"])
        .replacing("layers.{l}.mlp.norm", "layers.{l}.post_attention_layernorm");
    Ok(family)
}

/// Gemma 2: soft caps on scores and logits, every other layer slides.
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

/// VaultGemma: Gemma 2 without the norms after its sublayers.
pub(super) fn vaultgemma(config: &Config) -> Result<Family> {
    let mut family = gemma2(config)?;
    family.each(|layer| (layer.attn_post_norm, layer.mlp_post_norm) = (None, None));
    Ok(family)
}

/// Gemma 3's language model: norms on queries and keys, five sliding layers to a full one, each kind with its own rotary base.
pub(super) fn gemma3_text(config: &Config) -> Result<Family> {
    let config = &parts_by_layer_type(config, ("rope_theta", 1e6), ("rope_local_base_freq", 1e4))?
        .with_defaults([("num_key_value_heads", json!(4)), ("sliding_window", json!(4096))]);
    let ropes = by_layer_type(config, head_dim(config)?)?;
    let pattern = config.size_or("sliding_window_pattern", 6)?.max(1);
    if config.flag_or("use_bidirectional_attention", false)? {
        return Err(Error::unsupported(
            "`use_bidirectional_attention` makes tokens attend to later ones, so this is no language model",
            "use a model with the switch off",
        ));
    }
    let mut family = gemma(config, ropes, |layer| !(layer + 1).is_multiple_of(pattern), usize::from, true)?;
    // The class reads `attn_logit_softcapping`, and no longer uses it.
    family.each_attention(|a| a.soft_cap = None);
    Ok(family)
}

/// Gemma 3 with its vision tower: the language model inside.
pub(super) fn gemma3(config: &Config) -> Result<Family> {
    let text = config.part("text_config").ok_or_else(|| config.bad("text_config", "is missing"))?;
    // Some leave out even these.
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
    family.names.other_parts =
        vec!["vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."];
    family.names = family.names.outside("head", "language_model.lm_head");
    Ok(family)
}

fn head_dim(config: &Config) -> Result<usize> {
    config.size_or("head_dim", 256)
}

/// What both share; `rope_of(sliding)` says which rotary embedding a layer uses.
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
    // llama.cpp adds the one to the gain when it converts a file.
    let gain = if config.flag_or("pellucid_gguf", false)? { Gain::Weight } else { Gain::OnePlusWeight };
    let norm = Norm { kind: NormKind::Rms, eps: config.number_or("rms_norm_eps", 1e-6)?, gain, bias: false };
    let bias = config.flag_or("attention_bias", false)?;
    let window = config.size_maybe("sliding_window")?;
    let windows = windows(config, depth, window, slides)?;
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
        // The embedding module returns its rows already scaled, so it lends no alias.
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
