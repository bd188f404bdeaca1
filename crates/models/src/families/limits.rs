//! Sizes that no model has are refused before anything is allocated by them.

use crate::config::Config;
use crate::error::{Error, Result};

/// Of layers, heads and experts.
const PARTS: usize = 4096;
/// Of a vector.
const WIDTH: usize = 1 << 20;
/// Experts of all layers together.
const EXPERTS: usize = 1 << 16;

/// The keys by which families count their experts.
const EXPERT_COUNTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

const LIMITS: &[(&str, usize)] = &[
    ("num_hidden_layers", PARTS),
    ("n_layer", PARTS),
    ("n_layers", PARTS),
    ("hidden_size", WIDTH),
    ("n_embd", WIDTH),
    ("n_embed", WIDTH),
    ("d_model", WIDTH),
    ("head_dim", WIDTH),
    ("kv_channels", WIDTH),
    ("v_head_dim", WIDTH),
    ("qk_nope_head_dim", WIDTH),
    ("qk_rope_head_dim", WIDTH),
    ("q_lora_rank", WIDTH),
    ("kv_lora_rank", WIDTH),
    ("num_attention_heads", PARTS),
    ("n_head", PARTS),
    ("n_heads", PARTS),
    ("kv_n_heads", PARTS),
];

/// Checks a configuration and the parts inside it that say sizes.
pub(super) fn check(config: &Config) -> Result<()> {
    let inside = ["text_config", "attn_config", "ffn_config"].map(|key| config.part(key));
    for part in std::iter::once(config).chain(inside.iter().flatten()) {
        for (key, limit) in LIMITS {
            if part.size_maybe(key)?.is_some_and(|size| size > *limit) {
                return Err(too_large(part, key, *limit));
            }
        }
        let heads = "num_attention_heads_per_layer";
        if part.sizes(heads)?.iter().any(|&heads| heads > PARTS) {
            return Err(too_large(part, heads, PARTS));
        }
        // Each expert of each layer has weights of its own.
        let layers = layers(part)?.map_or_else(|| layers(config), |layers| Ok(Some(layers)))?.unwrap_or(0);
        for key in EXPERT_COUNTS {
            let experts = part.size_or(key, 0)?;
            if experts > PARTS {
                return Err(too_large(part, key, PARTS));
            }
            if experts * layers > EXPERTS {
                let problem = format!("makes {} experts in all layers, and no model is that large", experts * layers);
                return Err(part.bad(key, &problem));
            }
        }
    }
    Ok(())
}

fn layers(config: &Config) -> Result<Option<usize>> {
    Ok(config.size_maybe("num_hidden_layers")?.or(config.size_maybe("n_layers")?))
}

fn too_large(config: &Config, key: &str, limit: usize) -> Error {
    config.bad(key, &format!("is more than {limit}, and no model is that large"))
}

/// The most layers that a file may claim.
pub(crate) const MOST_LAYERS: usize = PARTS;
