//! Llama 4, language model.

use super::Family;
use super::experts::{Mixture, NameSuffix, parse_choice, shared_names, without_experts};
use super::llama::llama_like;
use super::llama_variants::set_interleaved_rope;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Layout, Names};
use pellucid_engine::architecture::{ExpertWeights, Gain, Norm, PositionScale, Routing, Scores};
use serde_json::json;

/// Llama 4: rotary layers attend within chunks, the others scale queries by position; expert
/// weights multiply the experts' inputs.
pub(super) fn llama4_text(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(128)),
        ("num_key_value_heads", json!(8)),
        ("num_local_experts", json!(16)),
        ("num_experts_per_tok", json!(1)),
        ("attention_chunk_size", json!(8192)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(500_000.0)),
    ]);
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    family.set_attention_bias(bias);
    set_interleaved_rope(config, &mut family)?;
    set_attention_layers(config, &mut family)?;
    set_experts(config, &mut family)?;
    Ok(family)
}

/// Sets chunk, rotary embedding, QK norm and position scale of each layer.
fn set_attention_layers(config: &Config, family: &mut Family) -> Result<()> {
    let layers = family.architecture.layers.len();
    let (listed, interval) = (config.sizes("no_rope_layers")?, config.size_or("no_rope_layer_interval", 4)?.max(1));
    // Despite its name, the list says 1 for the layers that do rotate.
    let rotates = |layer: usize| listed.get(layer).map_or(!(layer + 1).is_multiple_of(interval), |&flag| flag != 0);
    if !listed.is_empty() && listed.len() != layers {
        return Err(config.bad("no_rope_layers", "does not have one entry per layer"));
    }
    let chunked = match config.texts("layer_types")? {
        Some(types) if types.len() != layers => {
            return Err(config.bad("layer_types", "does not have one entry per layer"));
        }
        Some(types) => types
            .into_iter()
            .map(|kind| {
                parse_choice(config, "layer_types", kind, &["full_attention", "chunked_attention"]).map(|i| i == 1)
            })
            .collect::<Result<_>>()?,
        None => (0..layers).map(rotates).collect::<Vec<_>>(),
    };
    let chunk = config.size("attention_chunk_size")?;
    let norm = Norm { gain: Gain::None, ..Norm::rms(config.number("rms_norm_eps")?) };
    let norm = config.flag_or("use_qk_norm", true)?.then_some(norm);
    let position_scale = PositionScale {
        scale: config.number_or("attn_scale", 0.1)?,
        span: config.number_or("floor_scale", 8192.0)?,
        offset: 1.0,
    };
    let position_scale = config.flag_or("attn_temperature_tuning", true)?.then_some(position_scale);
    let mut layer = 0;
    family.each_attention(|a| {
        a.chunk = chunked[layer].then_some(chunk);
        if rotates(layer) {
            (a.qk_norm, a.qk_norm_after_rope) = (norm, true);
        } else {
            (a.rope, a.position_scale) = (None, position_scale);
        }
        layer += 1;
    });
    Ok(())
}

/// Sets experts in some layers, wider dense MLPs in the others.
fn set_experts(config: &Config, family: &mut Family) -> Result<()> {
    let (layers, step) = (family.architecture.layers.len(), config.size_or("interleave_moe_layer_step", 1)?.max(1));
    let listed = config.get("moe_layers").map(|_| config.sizes("moe_layers")).transpose()?;
    let is_sparse = |layer: usize| match &listed {
        Some(listed) => listed.contains(&layer),
        None => (layer + 1).is_multiple_of(step),
    };
    let sparse: Vec<bool> = (0..layers).map(is_sparse).collect();
    let width = config.size("intermediate_size")?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width,
        routing: Routing { on_input: true, ..Routing::new(Scores::Raw, ExpertWeights::Sigmoid { normalized: false }) },
        shared_width: width,
    };
    mixture.apply_to(family, &sparse);
    let wide = config.size_or("intermediate_size_mlp", 16384)?;
    family.each_dense(|dense| dense.width = wide);
    family.architecture.modules.mlp = Some("feed_forward".into());
    family.names = names(std::mem::take(&mut family.names), mixture);
    Ok(())
}

/// MLPs are called `feed_forward`; the experts of a layer are two tensors, `[experts, inputs,
/// outputs]`.
fn names(names: Names, mixture: Mixture) -> Names {
    let at = "layers.{l}.feed_forward";
    let (gate_up, down) = (format!("{at}.experts.gate_up_proj"), format!("{at}.experts.down_proj"));
    let names = mixture.fused_names(without_experts(names), &gate_up, &down, Layout::InOut, NameSuffix::None);
    let names = shared_names(names, &["feed_forward.shared_expert"]);
    ["gate", "up", "down"]
        .into_iter()
        .fold(names, |names, part| names.replacing(&format!("layers.{{l}}.mlp.{part}"), &format!("{at}.{part}_proj")))
        .replacing("layers.{l}.mlp.router", &format!("{at}.router"))
}
