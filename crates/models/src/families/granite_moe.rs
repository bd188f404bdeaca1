//! Granite MoE, with or without a shared expert and sliding windows.

use super::Family;
use super::experts::{Mixture, NameSuffix, shared_names, without_experts};
use super::llama::set_sliding_window;
use super::llama_attention_variants::add_sinks;
use super::llama_variants::granite;
use crate::config::Config;
use crate::error::Result;
use crate::names::{Layout, StoredPart};
use crate::rope::build_rope;
use pellucid_engine::architecture::{ExpertWeights, RopeStyle, Routing, Scores};
use serde_json::json;

/// Granite MoE: Granite with experts, weighted by a softmax over the top k.
pub(super) fn granitemoe(config: &Config) -> Result<Family> {
    experts(config, 0)
}

/// Granite MoE with a shared expert.
pub(super) fn granitemoeshared(config: &Config) -> Result<Family> {
    experts(config, config.size_or("shared_intermediate_size", 0)?)
}

/// Granite MoE SWA: attention sinks, sliding windows, a rotary base per layer.
pub(super) fn granitemoe_swa(config: &Config) -> Result<Family> {
    let mut family = granitemoeshared(config)?;
    let window = config.with_defaults([("sliding_window", json!(128))]).size_maybe("sliding_window")?;
    set_sliding_window(config, &mut family, window, |layer| layer % 4 != 0)?;
    add_sinks(&mut family);
    rope_by_layer(config, &mut family)?;
    Ok(family)
}

/// Sets the rotary base of each layer from `layer_rope_theta`; 0 means no rotary positions.
pub(super) fn rope_by_layer(config: &Config, family: &mut Family) -> Result<()> {
    if config.get("layer_rope_theta").is_none() {
        return Ok(());
    }
    let (bases, head_dim) = (config.numbers("layer_rope_theta")?, family.head_dim());
    if bases.len() != family.architecture.layers.len() {
        return Err(config.bad("layer_rope_theta", "does not have one entry per layer"));
    }
    let mut distinct: Vec<f32> = bases.iter().copied().filter(|&base| base != 0.0).collect();
    distinct.sort_by(f32::total_cmp);
    distinct.dedup();
    let one = |base: &f32| {
        let scaling = config.part("rope_parameters").or_else(|| config.part("rope_scaling"));
        build_rope(config, scaling.as_ref(), *base, head_dim, 1.0, RopeStyle::Halves)
    };
    family.architecture.ropes = distinct.iter().map(one).collect::<Result<_>>()?;
    let mut bases = bases.iter();
    family.each_attention(|a| a.rope = bases.next().and_then(|base| distinct.iter().position(|other| other == base)));
    Ok(())
}

fn experts(config: &Config, shared: usize) -> Result<Family> {
    let config = &config.with_defaults([("num_local_experts", json!(8)), ("num_experts_per_tok", json!(2))]);
    let mut family = granite(config)?;
    let mixture = Mixture {
        count: config.size("num_local_experts")?,
        top_k: config.size("num_experts_per_tok")?,
        width: config.size("intermediate_size")?,
        routing: Routing::new(Scores::Raw, ExpertWeights::Softmax),
        shared_width: shared,
    };
    mixture.apply_to_all_layers(&mut family);
    // Hugging Face has no module for the sum of routed and shared experts.
    family.architecture.modules.mlp = (shared == 0).then(|| "block_sparse_moe".into());
    let at = "layers.{l}.block_sparse_moe";
    let (gate_up, down) = (format!("{at}.input_linear"), format!("{at}.output_linear"));
    let names = shared_names(without_experts(family.names), &[])
        .replacing("layers.{l}.mlp.router", &format!("{at}.router.layer"))
        .with(&[
            ("layers.{l}.mlp.router", format!("{at}.router")),
            ("layers.{l}.mlp.shared.down", "layers.{l}.shared_mlp.output_linear".into()),
        ]);
    let names = mixture.fused_names(names, &gate_up, &down, Layout::OutIn, NameSuffix::Weight);
    let (gate_up, down) = (format!("{at}.experts.gate_up_proj"), format!("{at}.experts.down_proj"));
    let fused = "layers.{l}.shared_mlp.input_linear";
    family.names = mixture
        .fused_names(names, &gate_up, &down, Layout::OutIn, NameSuffix::None)
        .with_part("layers.{l}.mlp.shared.gate", fused, StoredPart::rows(0, 2 * shared))
        .with_part("layers.{l}.mlp.shared.up", fused, StoredPart::rows(shared, 2 * shared));
    Ok(family)
}
