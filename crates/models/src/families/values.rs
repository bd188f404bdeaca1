//! Types and ranges of the keys of a configuration, checked in one place before a family reads it.
//!
//! A family reads a key with a default, so a value of another type must not look like an absent
//! key. A value outside its range would load and give NaN or infinite logits.

use crate::config::Config;
use crate::error::Result;
use serde_json::Value;

/// Keys whose value is text.
const TEXT_KEYS: &[&str] = &[
    "hidden_act",
    "hidden_activation",
    "activation",
    "activation_function",
    "mlp_hidden_act",
    "mamba_hidden_act",
    "afn",
    "rope_type",
    "expert_selection_fn",
    "shared_expert_combination_strategy",
    "scoring_func",
    "topk_method",
    "position_embedding_type",
    "hybrid_override_pattern",
];

/// Keys whose value is an object.
const OBJECT_KEYS: &[&str] = &[
    "rope_parameters",
    "rope_scaling",
    "text_config",
    "attn_config",
    "ffn_config",
    "ffn_act_fn",
    "linear_attn_config",
    "quantization_config",
];

/// Objects whose keys are checked, too: parts of a model, and rotary settings by layer type.
const PARTS: &[&str] = &[
    "rope_parameters",
    "rope_scaling",
    "text_config",
    "attn_config",
    "ffn_config",
    "linear_attn_config",
    "full_attention",
    "sliding_attention",
];

/// Factors beyond this give infinite activations.
const MAX_FACTOR: f64 = 1e6;

/// Keys of factors, beside those that end with `multiplier` or `multipliers`.
const FACTOR_KEYS: &[&str] = &[
    "attention_value_scale",
    "attn_scale",
    "floor_scale",
    "logit_scale",
    "long_mscale",
    "moe_routed_scaling_factor",
    "mscale",
    "mscale_all_dim",
    "route_scale",
    "routed_scaling_factor",
    "router_scaling_factor",
    "scale_depth",
    "scale_emb",
    "short_mscale",
    "softmax_scale",
];

/// Keys of numbers that are divided by, or whose logarithm or root is taken.
const POSITIVE_KEYS: &[&str] = &[
    "alibi_bias_max",
    "attention_factor",
    "attn_logit_softcapping",
    "beta_fast",
    "beta_slow",
    "factor",
    "final_logit_softcapping",
    "high_freq_factor",
    "logits_scaling",
    "logits_soft_cap",
    "long_factor",
    "low_freq_factor",
    "original_max_position_embeddings",
    "query_pre_attn_scalar",
    "rope_theta",
    "rotary_emb_base",
    "short_factor",
];

/// Checks the types and ranges of the keys of a configuration and of its parts.
pub(super) fn check(config: &Config) -> Result<()> {
    for (key, value) in config.entries() {
        check_value(config, key, key, value)?;
    }
    Ok(())
}

/// Checks the value of `key`; `path` names it in errors.
fn check_value(config: &Config, path: &str, key: &str, value: &Value) -> Result<()> {
    let wrong = |problem: String| Err(config.bad(path, &format!("is {}, {problem}", shorten(value))));
    if value.is_null() {
        return Ok(());
    }
    if TEXT_KEYS.contains(&key) && !value.is_string() {
        return wrong("which is not text".into());
    }
    if OBJECT_KEYS.contains(&key) && !value.is_object() {
        return wrong("which is not an object".into());
    }
    if let Value::Object(inner) = value
        && PARTS.contains(&key)
    {
        for (name, value) in inner {
            check_value(config, &format!("{path}.{name}"), name, value)?;
        }
    }
    let Some((range, holds)) = range(key) else { return Ok(()) };
    let numbers = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    // Values of other types are refused by the family that reads the key.
    match numbers.iter().filter_map(Value::as_f64).all(holds) {
        true => Ok(()),
        false => wrong(format!("which must be {range}")),
    }
}

/// A range of numbers, in words and as a test.
type NumberRange = (&'static str, fn(f64) -> bool);

/// The range of a key's numbers.
fn range(key: &str) -> Option<NumberRange> {
    if key.ends_with("multiplier") || key.ends_with("multipliers") || FACTOR_KEYS.contains(&key) {
        return Some(("between -1000000 and 1000000", |x| x.abs() <= MAX_FACTOR));
    }
    if POSITIVE_KEYS.contains(&key) {
        // As f32: 1e-60 would be zero, 1e60 infinite.
        return Some(("positive", |x| x as f32 > 0.0 && (x as f32).is_finite()));
    }
    if key.ends_with("_eps") || key.ends_with("_epsilon") {
        return Some(("between 0 and 1", |x| (0.0..=1.0).contains(&x)));
    }
    (key == "clip_qkv").then_some(("0 or more", |x| x >= 0.0))
}

fn shorten(value: &Value) -> String {
    crate::escape::text(&value.to_string(), 60)
}
