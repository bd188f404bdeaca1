//! Published configurations of well-known models, without irrelevant keys: category, tier and
//! sizes.

use pellucid_models::inspect;
use pellucid_models::inspect::{Category, Support, is_model_supported, is_omni_model};

/// Name, configuration, category, tier, omni flag, `[layers, width, heads, kv_heads, context,
/// vocab]`.
type KnownModel = (&'static str, &'static str, Category, Support, bool, [Option<usize>; 6]);

const fn sizes(
    layers: usize,
    width: usize,
    heads: usize,
    kv: usize,
    context: usize,
    vocab: usize,
) -> [Option<usize>; 6] {
    [Some(layers), Some(width), Some(heads), Some(kv), Some(context), Some(vocab)]
}

const MODELS: &[KnownModel] = &[
    (
        "meta-llama/Llama-3.1-8B",
        r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000, "eos_token_id": 128001,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256}"#,
        Category::Transformers,
        Support::Native,
        false,
        sizes(32, 4096, 32, 8, 131072, 128256),
    ),
    (
        "mistralai/Mistral-7B-v0.1",
        r#"{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000}"#,
        Category::Transformers,
        Support::Native,
        false,
        sizes(32, 4096, 32, 8, 32768, 32000),
    ),
    (
        "Qwen/Qwen2.5-0.5B",
        r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
        "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936}"#,
        Category::Transformers,
        Support::Native,
        false,
        sizes(24, 896, 14, 2, 32768, 151936),
    ),
    (
        "google/gemma-2-2b",
        r#"{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
        "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
        "sliding_window": 4096, "torch_dtype": "float32", "vocab_size": 256000}"#,
        Category::Transformers,
        Support::Native,
        false,
        sizes(26, 2304, 8, 4, 8192, 256000),
    ),
    (
        "openai-community/gpt2",
        r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "eos_token_id": 50256, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
        "n_layer": 12, "n_positions": 1024, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
        "vocab_size": 50257}"#,
        Category::Transformers,
        Support::Native,
        false,
        sizes(12, 768, 12, 12, 1024, 50257),
    ),
    (
        "llava-hf/llava-1.5-7b-hf",
        r#"{"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000, "model_type": "llava",
        "projector_hidden_act": "gelu", "text_config": {"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096, "model_type": "llama", "vocab_size": 32064},
        "vision_config": {"hidden_size": 1024, "model_type": "clip_vision_model", "num_hidden_layers": 24}, "torch_dtype": "float16"}"#,
        Category::Transformers,
        Support::InspectOnly,
        false,
        sizes(32, 4096, 32, 32, 4096, 32064),
    ),
    (
        "Qwen/Qwen2.5-Omni-7B",
        r#"{"architectures": ["Qwen2_5OmniForConditionalGeneration"], "enable_audio_output": true, "enable_talker": true,
        "model_type": "qwen2_5_omni", "talker_config": {"hidden_size": 896, "model_type": "qwen2_5_omni_talker", "num_hidden_layers": 24},
        "thinker_config": {"audio_config": {"model_type": "qwen2_5_omni_audio_encoder"}, "model_type": "qwen2_5_omni_thinker",
        "text_config": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "model_type": "qwen2_5_omni_text", "vocab_size": 152064}, "vision_config": {}},
        "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"}, "torch_dtype": "bfloat16"}"#,
        Category::Transformers,
        Support::InspectOnly,
        true,
        sizes(28, 3584, 28, 4, 32768, 152064),
    ),
    (
        "facebook/dinov2-base",
        r#"{"architectures": ["Dinov2Model"], "attention_probs_dropout_prob": 0.0, "hidden_size": 768, "image_size": 518,
        "model_type": "dinov2", "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 14}"#,
        Category::VisionEncoder,
        Support::InspectOnly,
        false,
        [Some(12), Some(768), Some(12), Some(12), None, None],
    ),
    (
        "google/siglip-base-patch16-224",
        r#"{"architectures": ["SiglipModel"], "initializer_factor": 1.0, "model_type": "siglip", "text_config": {"model_type": "siglip_text_model"},
        "vision_config": {"model_type": "siglip_vision_model"}, "torch_dtype": "float32"}"#,
        Category::VisionEncoder,
        Support::InspectOnly,
        false,
        [None; 6],
    ),
    (
        "facebook/wav2vec2-base-960h",
        r#"{"architectures": ["Wav2Vec2ForCTC"], "conv_dim": [512, 512], "ctc_loss_reduction": "sum", "hidden_size": 768,
        "model_type": "wav2vec2", "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 32}"#,
        Category::AudioEncoder,
        Support::InspectOnly,
        false,
        [Some(12), Some(768), Some(12), Some(12), None, Some(32)],
    ),
    (
        "sentence-transformers/all-MiniLM-L6-v2",
        r#"{"_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384,
        "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 6, "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522}"#,
        Category::Embedding,
        Support::InspectOnly,
        false,
        sizes(6, 384, 12, 12, 512, 30522),
    ),
    (
        "openai/whisper-tiny",
        r#"{"activation_function": "gelu", "architectures": ["WhisperForConditionalGeneration"], "d_model": 384, "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536, "decoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layers": 4,
        "is_encoder_decoder": true, "max_source_positions": 1500, "max_target_positions": 448, "model_type": "whisper",
        "num_hidden_layers": 4, "num_mel_bins": 80, "scale_embedding": false, "vocab_size": 51865}"#,
        Category::Asr,
        Support::Native,
        false,
        sizes(4, 384, 6, 6, 448, 51865),
    ),
];

#[test]
fn well_known_models_are_identified_by_their_configurations() {
    for (name, config, category, support, omni, sizes) in MODELS {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        let (check, report) = (is_model_supported(dir.path()), inspect(dir.path()).expect("a report"));
        assert_eq!((check.category, check.tier), (*category, *support), "{name}: {check:?}");
        assert_eq!((report.category, report.support), (*category, *support), "{name}");
        assert_eq!((is_omni_model(dir.path()), report.modalities.omni), (*omni, *omni), "{name}");
        let found = [report.layers, report.width, report.heads, report.kv_heads, report.context, report.vocab];
        assert_eq!(found, *sizes, "{name}");
        assert!(!report.runs(), "{name}: there are no weights");
    }
}
