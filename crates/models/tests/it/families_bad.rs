//! Invalid values for every key that a family reads give an error or a program, never a panic.

use pellucid_engine::Program;
use pellucid_models::config::Config;
use pellucid_models::families;
use serde_json::{Value, json};
use std::path::Path;

/// Configuration of a small model, with the keys of all families.
const SMALL_MODEL: &str = r#"{
    "vocab_size": 96, "hidden_size": 32, "n_embd": 32, "d_model": 32,
    "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4, "decoder_layers": 4,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "kv_channels": 8, "rotary_dim": 4,
    "intermediate_size": 48, "n_inner": 48, "ffn_dim": 48, "decoder_ffn_dim": 48, "dff": 48, "ffn_hidden_size": 48,
    "max_position_embeddings": 64, "n_positions": 64, "max_target_positions": 64, "sliding_window": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "is_decoder": true,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 24,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_d_state": 8,
    "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "state_size": 8, "ssm_state_size": 8, "n_groups": 1, "hybrid_layer_ids": [1, 3],
    "hybrid_override_pattern": "M*-E", "attn_layer_period": 2, "attn_layer_offset": 1,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_heads": 4, "linear_head_dim": 8,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    "text_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 96
    }
}"#;

fn small_model() -> Value {
    serde_json::from_str(SMALL_MODEL).expect("valid JSON")
}

/// Keys that `SMALL_MODEL` does not have.
const OTHER_KEYS: &[&str] = &[
    "layer_types",
    "layers_block_type",
    "mlp_layer_types",
    "no_rope_layers",
    "attn_layer_indices",
    "attention_layers",
    "block_types",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "rotary_pct",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
    "attention_bias",
    "expand",
    "conv_kernel",
    "mamba_d_conv",
    "mamba_dt_rank",
    "time_step_rank",
    "time_step_limit",
    "embedding_size",
    "word_embed_proj_dim",
    "decoder_vocab_size",
    "pad_token_id",
    "type_vocab_size",
    "lru_width",
    "attention_hidden_size",
    "rescale_every",
    "full_attention_interval",
    "sliding_window_pattern",
    "block_ffn_dim_multiplier",
    "block_multiple_of",
    "intermediate_multiple_size",
    "num_mem_blocks",
    "adapter_rank",
    "ssm_multipliers",
    "mlp_multipliers",
    "query_pre_attn_scalar",
    "logits_scaling",
    "scale_depth",
    "dim_model_base",
];

fn bad_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(-1),
        json!(0),
        json!(7),
        json!(0.3),
        json!(1e30),
        json!(1u64 << 14),
        json!((1u64 << 31) - 1),
        json!(1u64 << 40),
        json!("NaN"),
        json!(true),
        json!([]),
        json!(["full_attention", "x"]),
        json!([1e30, 1u64 << 40]),
        json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 0.0, "original_max_position_embeddings": 0}),
        json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": []}),
    ]
}

/// Reads a configuration, builds its program and computes the shapes of its stored tensors. Returns
/// the sum of their ranks, which the tests compare, or the error.
fn read(value: Value) -> Result<usize, String> {
    let config = Config::new(value, Path::new("config.json")).map_err(|error| error.to_string())?;
    let family = families::read(&config).map_err(|error| error.to_string())?;
    let program = Program::new(family.architecture).map_err(|error| error.to_string())?;
    let prefix = family.names.prefixes.first().copied().unwrap_or_default();
    let shapes = program.weights().iter().take(200).flat_map(|spec| {
        let sources = family.names.sources(&spec.name, prefix);
        assert!(!sources.is_empty(), "no name is known for {}", spec.name);
        sources.into_iter().map(|source| source.part.stored_shape(&spec.shape, source.transposed).len())
    });
    Ok(shapes.sum())
}

fn with(config: &Value, key: &str, value: Value) -> Value {
    let mut changed = config.clone();
    changed[key] = value;
    changed
}

#[test]
fn every_family_reads_the_small_model() {
    for family in families::native() {
        let outcome = read(with(&small_model(), "model_type", family.into()));
        assert!(outcome.is_ok(), "{family}: {outcome:?}");
    }
}

#[test]
fn no_value_of_any_key_makes_a_family_panic() {
    let keys: Vec<String> = small_model().as_object().map(|keys| keys.keys().cloned().collect()).unwrap_or_default();
    let mut panics = Vec::new();
    for family in families::native() {
        let config = with(&small_model(), "model_type", family.into());
        let original = read(config.clone());
        let probes = [json!([[]]), json!("?"), json!({"rope_type": "?"})];
        let reads = |key: &&str| probes.iter().any(|probe| read(with(&config, key, probe.clone())) != original);
        for key in keys.iter().map(String::as_str).chain(OTHER_KEYS.iter().copied()).filter(reads) {
            for value in bad_values() {
                let changed = with(&config, key, value.clone());
                if std::panic::catch_unwind(|| read(changed)).is_err() {
                    panics.push(format!("{family}: {key} = {value}"));
                }
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
}

#[test]
fn f12_values_of_a_wrong_type_or_out_of_range_are_refused_by_name() {
    let refused = |family: &str, key: &str, value: Value, problem: &str| {
        let config = with(&with(&small_model(), "model_type", family.into()), key, value.clone());
        let error = read(config).expect_err(&format!("{family}: {key} = {value}"));
        assert!(error.contains(&format!("`{key}")) && error.contains(problem), "{family}: {key} = {value}: {error}");
    };
    for value in [json!(3), json!("x"), json!([1]), json!(true)] {
        refused("llama", "rope_parameters", value.clone(), "which is not an object");
        refused("llama", "rope_scaling", value, "which is not an object");
    }
    for value in [json!(["gelu"]), json!(3), json!({"a": 1}), json!(false)] {
        refused("llama", "hidden_act", value.clone(), "which is not text");
        refused("gemma2", "hidden_activation", value.clone(), "which is not text");
        refused("gpt2", "activation_function", value, "which is not text");
    }
    for value in [json!(-1e-6), json!(2.0), json!(1e300)] {
        refused("llama", "rms_norm_eps", value, "which must be between 0 and 1");
    }
    for (key, value) in [("factor", json!(0.0)), ("factor", json!(-2)), ("rope_theta", json!(1e300))] {
        let mut rope = json!({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0});
        rope[key] = value;
        refused("llama", "rope_parameters", rope, "which must be positive");
    }
    for value in [json!(0), json!(-2.0), json!(1e-60)] {
        refused("granite", "logits_scaling", value, "which must be positive");
    }
    refused("granite", "embedding_multiplier", json!(1e308), "which must be between");
    refused("olmo", "clip_qkv", json!(-1), "which must be 0 or more");
    refused("gemma2", "final_logit_softcapping", json!(0), "which must be positive");
    refused("gemma2", "query_pre_attn_scalar", json!(0), "which must be positive");
    refused("falcon_h1", "ssm_multipliers", json!([1e30, 1, 1, 1, 1]), "which must be between");
    // Null means absent.
    let absent = with(&with(&small_model(), "model_type", "llama".into()), "hidden_act", Value::Null);
    assert!(read(absent).is_ok());
}
