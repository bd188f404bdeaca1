//! GPT-OSS: attention sinks, sliding window in every other layer, experts with biases and a clamped
//! GLU.

use super::Family;
use super::experts::{Mixture, expert, require_value, without_experts};
use super::llama::{llama_like, set_sliding_window};
use crate::config::Config;
use crate::error::Result;
use crate::names::{Layout, Names, StoredPart};
use crate::rope::rope_parameters_or;
use pellucid_engine::architecture::{Activation, ExpertWeights, Routing, Scores};
use serde_json::json;

/// GPT-OSS.
pub(super) fn gpt_oss(config: &Config) -> Result<Family> {
    let config = &config.with_defaults([
        ("head_dim", json!(64)),
        ("num_key_value_heads", json!(8)),
        ("num_local_experts", config.get("num_experts").cloned().unwrap_or(json!(128))),
        ("num_experts_per_tok", json!(4)),
        ("sliding_window", json!(128)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(150_000.0)),
    ]);
    let scaling = json!({
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096,
    });
    // The older key `rope_scaling` takes precedence over the default.
    let config =
        &if config.part("rope_scaling").is_some() { config.clone() } else { rope_parameters_or(config, scaling) };
    require_value(config, "swiglu_alpha", 1.702)?;
    require_value(config, "swiglu_limit", 7.0)?;
    let mut family = llama_like(config)?;
    let bias = config.flag_or("attention_bias", true)?;
    family.set_attention_bias(bias);
    family.each_attention(|a| a.sinks = true);
    set_sliding_window(config, &mut family, config.size_maybe("sliding_window")?, |layer| layer.is_multiple_of(2))?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing { bias: true, ..Routing::new(Scores::Raw, ExpertWeights::Softmax) },
        shared_width: 0,
    };
    mixture.apply_to_all_layers(&mut family);
    family.each_experts(|experts| {
        experts.expert.activation = Activation::ClampedGlu;
        experts.expert = experts.expert.with_bias(true);
    });
    family.names = names(family.names, mixture.count);
    Ok(family)
}

/// The experts of a layer are two tensors, `[experts, inputs, outputs]`, and their biases; the rows
/// of gate and up are interleaved.
fn names(names: Names, count: usize) -> Names {
    let at = "layers.{l}.mlp.experts";
    let interleaved = |start: usize| StoredPart::grouped(start, 1, 2).stacked(count);
    let parts = [
        ("gate", "gate_up_proj", interleaved(0)),
        ("up", "gate_up_proj", interleaved(1)),
        ("down", "down_proj", StoredPart::default().stacked(count)),
    ];
    let names = parts.into_iter().fold(without_experts(names), |names, (part, stored, rows)| {
        names.with_bare_part(&expert(part), &format!("{at}.{stored}"), rows, Layout::InOut).with_bare_part(
            &format!("{}.bias", expert(part)),
            &format!("{at}.{stored}_bias"),
            rows,
            Layout::OutIn,
        )
    });
    names
        .replacing("layers.{l}.mlp.router", "layers.{l}.mlp.router")
        .with_bare(&[("layers.{l}.attn.sinks", "layers.{l}.self_attn.sinks")])
}
