//! Sizes that no model has are refused before anything is allocated by them.

use crate::config::Config;
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
    ("hidden_size", WIDTH),
    ("n_embd", WIDTH),
    ("n_embed", WIDTH),
    ("head_dim", WIDTH),
    ("num_attention_heads", PARTS),
    ("n_head", PARTS),
    ("num_local_experts", PARTS),
];

/// Checks a configuration and the language model inside it.
pub(super) fn check(config: &Config) -> Result<()> {
    for part in [Some(config.clone()), config.part("text_config")].into_iter().flatten() {
        for (key, limit) in LIMITS {
            if part.size_maybe(key)?.is_some_and(|size| size > *limit) {
                return Err(part.bad(key, &format!("is more than {limit}, and no model is that large")));
            }
        }
        // Each expert of each layer has weights of its own.
        let experts = part.size_or("num_local_experts", 0)? * part.size_or("num_hidden_layers", 0)?;
        if experts > EXPERTS {
            return Err(part.bad(
                "num_local_experts",
                &format!("makes {experts} experts in all layers, and no model is that large"),
            ));
        }
    }
    Ok(())
}

/// The most layers that a file may claim.
pub(crate) const MOST_LAYERS: usize = PARTS;
