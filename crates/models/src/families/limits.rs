//! Sizes that no model has are refused before anything is allocated by them.

use super::Family;
use crate::config::{Config, LARGEST};
use crate::error::Result;
use pellucid_engine::architecture::{Layer, Mlp};
use serde_json::Value;

/// Of layers, heads and experts.
const PARTS: usize = 4096;
/// Of a vector.
const WIDTH: usize = 1 << 20;
/// Experts of all layers together.
const EXPERTS: usize = 1 << 16;

/// What families call the number of experts of a layer, and of layers.
const EXPERT_KEYS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts"];
const LAYER_KEYS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"];
const HEAD_KEYS: &[&str] = &[
    "num_attention_heads",
    "n_head",
    "num_heads",
    "n_heads",
    "kv_n_heads",
    "attention_heads",
    "decoder_attention_heads",
    "num_attention_heads_per_layer",
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "mamba_n_heads",
    "mamba_num_heads",
    "n_mamba_heads",
    "linear_num_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "num_mem_blocks",
];
const WIDTH_KEYS: &[&str] = &[
    "hidden_size",
    "n_embd",
    "n_embed",
    "d_model",
    "head_dim",
    "kv_channels",
    "v_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "state_size",
    "mamba_d_state",
    "ssm_state_size",
    "mamba_d_head",
    "mamba_head_dim",
    "mamba_headdim",
    "linear_head_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "attention_head_dim",
    "attention_hidden_size",
    "lru_width",
    "embedding_size",
    "word_embed_proj_dim",
];

/// Checks a configuration and the parts inside it that say sizes.
pub(super) fn check(config: &Config) -> Result<()> {
    let inside = ["text_config", "attn_config", "ffn_config"].map(|key| config.part(key));
    let size = |part: &Config, key: &str| part.get(key).map_or(0, largest);
    let depth = |part: &Config| LAYER_KEYS.iter().map(|key| size(part, key)).max().unwrap_or(0);
    // Doge writes down thousands that it has not made.
    let expert_keys = if config.model_type().is_ok_and(|kind| kind == "doge") { &[] } else { EXPERT_KEYS };
    for part in std::iter::once(config).chain(inside.iter().flatten()) {
        for (key, value) in part.entries() {
            let counts = [LAYER_KEYS, HEAD_KEYS, expert_keys].iter().any(|keys| keys.contains(&key));
            let limit = if counts { PARTS } else { WIDTH };
            if (counts || WIDTH_KEYS.contains(&key)) && largest(value) > limit {
                return Err(part.bad(key, &format!("is more than {limit}, and no model is that large")));
            }
        }
        // Each expert of each layer has weights of its own.
        let layers = depth(part).max(depth(config)).max(1);
        for key in expert_keys {
            let experts = size(part, key).saturating_mul(layers);
            if experts > EXPERTS {
                let problem = format!("makes {experts} experts in all layers, and no model is that large");
                return Err(part.bad(key, &problem));
            }
        }
    }
    Ok(())
}

/// Checks what a family made of a configuration, with its own numbers where the configuration has none.
pub(super) fn check_made(config: &Config, family: &Family) -> Result<()> {
    let count = |layer: &Layer| match &layer.mlp {
        Some(Mlp::Experts(experts)) => experts.count,
        _ => 0,
    };
    let experts = family.architecture.layers.iter().map(count).fold(0, usize::saturating_add);
    if experts > EXPERTS {
        let problem = format!("makes {experts} experts in all layers, and no model is that large");
        return Err(config.bad("num_hidden_layers", &problem));
    }
    Ok(())
}

/// A number, the largest of a list of numbers, and 0 for what is no size at all: that its reader refuses.
fn largest(value: &Value) -> usize {
    let numbers = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    numbers.iter().filter_map(|n| usize::try_from(n.as_u64()?).ok()).filter(|&n| n <= LARGEST).max().unwrap_or(0)
}

/// The most layers that a file may claim.
pub(crate) const MOST_LAYERS: usize = PARTS;
