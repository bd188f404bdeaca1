//! Upper limits of the sizes in a configuration, checked before anything is allocated from them.

use super::Family;
use crate::config::{Config, MAX_DIMENSION};
use crate::error::Result;
use pellucid_engine::architecture::{Layer, Mlp};
use serde_json::Value;

/// Limit of the number of layers, heads and experts.
const MAX_COUNT: usize = 4096;
/// Limit of the width of a vector.
const MAX_WIDTH: usize = 1 << 20;
/// Limit of the number of experts of all layers together.
const MAX_EXPERTS: usize = 1 << 16;

/// Keys for the number of experts per layer, of layers and of heads, and for widths.
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

/// Checks the sizes in a configuration and its nested parts.
pub(super) fn check(config: &Config) -> Result<()> {
    let inside = ["text_config", "attn_config", "ffn_config"].map(|key| config.part(key));
    let size = |part: &Config, key: &str| part.get(key).map_or(0, largest);
    let depth = |part: &Config| LAYER_KEYS.iter().map(|key| size(part, key)).max().unwrap_or(0);
    // Doge's configurations list thousands of experts even for models without experts.
    let expert_keys = if config.model_type().is_ok_and(|kind| kind == "doge") { &[] } else { EXPERT_KEYS };
    for part in std::iter::once(config).chain(inside.iter().flatten()) {
        for (key, value) in part.entries() {
            let counts = [LAYER_KEYS, HEAD_KEYS, expert_keys].iter().any(|keys| keys.contains(&key));
            let limit = if counts { MAX_COUNT } else { MAX_WIDTH };
            if (counts || WIDTH_KEYS.contains(&key)) && largest(value) > limit {
                return Err(part.bad(key, &format!("is more than the limit of {limit}")));
            }
        }
        // Every expert of every layer has its own weights.
        let layers = depth(part).max(depth(config)).max(1);
        for key in expert_keys {
            let experts = size(part, key).saturating_mul(layers);
            if experts > MAX_EXPERTS {
                let problem = format!("gives {experts} experts in all layers, more than the limit of {MAX_EXPERTS}");
                return Err(part.bad(key, &problem));
            }
        }
    }
    Ok(())
}

/// Checks the number of experts of an architecture, which includes the family's defaults.
pub(super) fn check_architecture(config: &Config, family: &Family) -> Result<()> {
    let count = |layer: &Layer| match &layer.mlp {
        Some(Mlp::Experts(experts)) => experts.count,
        _ => 0,
    };
    let experts = family.architecture.layers.iter().map(count).fold(0, usize::saturating_add);
    if experts > MAX_EXPERTS {
        let problem = format!("gives {experts} experts in all layers, more than the limit of {MAX_EXPERTS}");
        return Err(config.bad("num_hidden_layers", &problem));
    }
    Ok(())
}

/// Returns a size, or the largest of a list of sizes; 0 for other values, which the family rejects.
fn largest(value: &Value) -> usize {
    let numbers = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    numbers.iter().filter_map(|n| usize::try_from(n.as_u64()?).ok()).filter(|&n| n <= MAX_DIMENSION).max().unwrap_or(0)
}

/// Limit of the number of layers.
pub(crate) const MAX_LAYERS: usize = MAX_COUNT;
