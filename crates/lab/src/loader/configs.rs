//! The configurations of the fixtures: those of well-known models, so that what reads them has as much to read as in life.

use serde_json::{Map, Value, json};

/// A decoder of seven thousand million parameters or so, with `more` on top.
pub fn decoder(class: &str, model_type: &str, more: Value) -> Value {
    let mut config = json!({
        "architectures": [class],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "model_type": model_type,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "torch_dtype": "float16",
        "transformers_version": "4.44.0",
        "use_cache": true,
        "vocab_size": 32000
    });
    extend(&mut config, more);
    config
}

pub fn extend(config: &mut Value, more: Value) {
    if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
        config.extend(more);
    }
}

pub fn llama() -> Value {
    decoder("LlamaForCausalLM", "llama", json!({}))
}

pub fn qwen() -> Value {
    let more = json!({"intermediate_size": 18944, "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rope_theta": 1e6, "sliding_window": 131072, "use_sliding_window": false,
        "max_window_layers": 28, "vocab_size": 152064});
    decoder("Qwen2ForCausalLM", "qwen2", more)
}

pub fn qwen3() -> Value {
    let more = json!({"head_dim": 128, "intermediate_size": 12288, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "attention_bias": false, "rope_theta": 1e6, "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936});
    decoder("Qwen3ForCausalLM", "qwen3", more)
}

pub fn mistral() -> Value {
    let more = json!({"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 32768});
    decoder("MistralForCausalLM", "mistral", more)
}

pub fn gemma() -> Value {
    let more = json!({"head_dim": 256, "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048,
        "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "vocab_size": 256000});
    decoder("GemmaForCausalLM", "gemma", more)
}

pub fn phi() -> Value {
    let more = json!({"hidden_size": 3072, "intermediate_size": 8192, "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 1.0, "rope_scaling": null, "sliding_window": 2047, "pad_token_id": 32000, "vocab_size": 32064});
    decoder("Phi3ForCausalLM", "phi3", more)
}

/// The first DeepSeek, whose code never became part of `transformers`.
pub fn deepseek() -> Value {
    let more = json!({"auto_map": {"AutoModelForCausalLM": "modeling_deepseek.DeepseekForCausalLM"}, "hidden_size": 2048,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 28, "num_key_value_heads": 16, "vocab_size": 102400});
    decoder("DeepseekForCausalLM", "deepseek", more)
}

pub fn falcon() -> Value {
    json!({"alibi": false, "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": false, "bos_token_id": 11,
        "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": true, "new_decoder_architecture": false,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.27.4", "use_cache": true, "vocab_size": 65024})
}

pub fn siglip() -> Value {
    json!({"architectures": ["SiglipModel"], "initializer_factor": 1.0, "model_type": "siglip",
        "text_config": {"model_type": "siglip_text_model"},
        "vision_config": {"image_size": 224, "model_type": "siglip_vision_model", "patch_size": 16},
        "torch_dtype": "float32", "transformers_version": "4.37.0"})
}

pub fn whisper() -> Value {
    json!({"activation_function": "gelu", "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
        "bos_token_id": 50257, "d_model": 384, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layers": 4,
        "decoder_start_token_id": 50258, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layers": 4,
        "eos_token_id": 50257, "is_encoder_decoder": true, "max_source_positions": 1500, "max_target_positions": 448,
        "model_type": "whisper", "num_hidden_layers": 4, "num_mel_bins": 80, "pad_token_id": 50257,
        "scale_embedding": false, "torch_dtype": "float32", "transformers_version": "4.27.0", "use_cache": true,
        "vocab_size": 51865})
}

pub fn omni() -> Value {
    json!({"architectures": ["Qwen2_5OmniModel"], "enable_audio_output": true, "model_type": "qwen2_5_omni",
        "thinker_config": {"audio_config": {"model_type": "qwen2_5_omni_audio_encoder"}, "model_type": "qwen2_5_omni_thinker",
            "text_config": {"hidden_size": 3584, "num_hidden_layers": 28}, "vision_config": {"depth": 32}},
        "talker_config": {"hidden_size": 896, "model_type": "qwen2_5_omni_talker", "num_hidden_layers": 24},
        "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"}, "transformers_version": "4.50.0"})
}

pub fn omni_qwen3() -> Value {
    json!({"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "enable_audio_output": true, "model_type": "qwen3_omni_moe",
        "thinker_config": {"model_type": "qwen3_omni_moe_thinker", "text_config": {"num_experts": 128}},
        "talker_config": {"model_type": "qwen3_omni_moe_talker"}, "code2wav_config": {"model_type": "qwen3_omni_moe_code2wav"}})
}

pub fn any_to_any() -> Value {
    json!({"architectures": ["AnyToAnyModel"], "hidden_size": 4096, "model_type": "any-to-any", "num_hidden_layers": 32})
}

pub fn glm4_moe_lite() -> Value {
    let more = json!({"attention_bias": false, "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10240,
        "kv_lora_rank": 512, "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
        "norm_topk_prob": true, "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
        "num_key_value_heads": 20, "q_lora_rank": 768, "qk_head_dim": 256, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "rope_interleave": true, "routed_scaling_factor": 1.8, "topk_group": 1, "v_head_dim": 256, "vocab_size": 154880});
    decoder("Glm4MoeLiteForCausalLM", "glm4_moe_lite", more)
}

pub fn step_robotics() -> Value {
    let mut config = qwen3();
    extend(&mut config, json!({"architectures": ["Step3VL10BForCausalLM"], "model_type": "step_robotics"}));
    config
}

pub fn unknown() -> Value {
    decoder("AcmeForCausalLM", "acme_unheard_of", json!({}))
}

/// Nothing but names.
pub fn simple() -> Value {
    json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
}

pub fn quantised() -> Value {
    decoder(
        "LlamaForCausalLM",
        "llama",
        json!({"quantization_config": {"bits": 4, "desc_act": false, "group_size": 128, "quant_method": "gptq", "sym": true}}),
    )
}

pub fn talking() -> Value {
    decoder(
        "LlamaForCausalLM",
        "llama",
        json!({"talker_config": {"hidden_size": 896, "num_hidden_layers": 24}, "audio_config": {"num_mel_bins": 128}}),
    )
}

/// Everything at once: quantised, speaking, seeing, with code of its own.
pub fn complex() -> Value {
    let mut config = omni();
    extend(&mut config, quantised());
    let more = json!({"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni",
        "audio_config": {"num_mel_bins": 128}, "vision_config": {"depth": 32, "image_size": 448},
        "auto_map": {"AutoModel": "modeling_acme.AcmeModel"},
        "id2label": (0..200).map(|i| (i.to_string(), json!(format!("LABEL_{i}")))).collect::<Map<String, Value>>(),
        "layer_types": vec!["full_attention"; 64]});
    extend(&mut config, more);
    config
}

/// A Llama whose labels take some `bytes` of text.
pub fn large(bytes: usize) -> Value {
    // Most labels, such as `"LABEL_12345":12345,`, have twenty bytes.
    let labels: Map<String, Value> = (0..bytes / 19).map(|i| (format!("LABEL_{i:05}"), json!(i))).collect();
    decoder("LlamaForCausalLM", "llama", json!({"label2id": labels}))
}

/// Settings of one autoencoder of Gemma Scope 2.
pub fn autoencoder(site: &str, base: &str) -> Value {
    json!({"affine_connection": false, "architecture": "jump_relu", "hf_hook_point_in": format!("model.layers.12.{site}"),
        "hf_hook_point_out": format!("model.layers.12.{site}"), "l0": 20, "model_name": base, "type": "sae", "width": 16384})
}
