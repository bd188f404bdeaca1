//! Sizes that no model has are refused before anything is allocated by them.

use crate::config::{Config, LARGEST};
use crate::error::Result;

/// Of layers, heads and experts.
const PARTS: usize = 4096;
/// Of a vector.
const WIDTH: usize = 1 << 20;
/// Experts of all layers together.
const EXPERTS: usize = 1 << 16;

const LIMITS: &[(&str, usize)] = &[
    ("num_hidden_layers", PARTS),
    ("n_layer", PARTS),
    ("num_layers", PARTS),
    ("n_layers", PARTS),
    ("hidden_size", WIDTH),
    ("n_embd", WIDTH),
    ("n_embed", WIDTH),
    ("head_dim", WIDTH),
    ("num_attention_heads", PARTS),
    ("n_head", PARTS),
    ("num_heads", PARTS),
    ("n_heads", PARTS),
];

/// What families call the number of experts of a layer, and of layers.
const EXPERT_KEYS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts"];
const LAYER_KEYS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers"];

/// Checks a configuration and the language model inside it.
pub(super) fn check(config: &Config) -> Result<()> {
    for part in [Some(config.clone()), config.part("text_config")].into_iter().flatten() {
        for (key, limit) in LIMITS {
            if largest(&part, key) > *limit {
                return Err(part.bad(key, &format!("is more than {limit}, and no model is that large")));
            }
        }
        // Each expert of each layer has weights of its own.
        let layers = LAYER_KEYS.iter().map(|key| largest(&part, key)).max().unwrap_or(0);
        for key in EXPERT_KEYS {
            let experts = largest(&part, key).saturating_mul(layers.max(1));
            if experts > EXPERTS {
                let problem = format!("makes {experts} experts in all layers, and no model is that large");
                return Err(part.bad(key, &problem));
            }
        }
    }
    Ok(())
}

/// The number that a key has, the largest of a list of numbers, and 0 for what is no size at all: that its reader refuses.
fn largest(config: &Config, key: &str) -> usize {
    let Some(value) = config.get(key) else { return 0 };
    let numbers = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    numbers.iter().filter_map(|n| usize::try_from(n.as_u64()?).ok()).filter(|&n| n <= LARGEST).max().unwrap_or(0)
}

/// The most layers that a file may claim.
pub(crate) const MOST_LAYERS: usize = PARTS;
