//! The quick queries (`is_model_supported`, `get_model_info` and others) on typical directories.

use crate::directories::{dir_with, golden};
use pellucid_models::families::{family_of, register_architecture};
use pellucid_models::inspect::{
    Category, Support, detect_model_category, get_model_info, get_sae_base_model, inspect_quickly, is_asr_model,
    is_diffusers_model, is_model_supported, is_omni_model, is_sae_model, is_vision_encoder,
};
use pellucid_models::{LoadOptions, LoadedModel, inspect};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn with_config(config: Value) -> TempDir {
    dir_with(&[("config.json", config.to_string().as_bytes())])
}

/// Category, tier and omni flag of a model type and class. Asserts that all queries and the full
/// report agree.
fn identify(model_type: &str, class: &str) -> (Category, Support, bool) {
    let dir = with_config(json!({"model_type": model_type, "architectures": [class]}));
    let (check, report) = (is_model_supported(dir.path()), inspect(dir.path()).expect("a report"));
    assert_eq!((check.category, check.tier), (report.category, report.support), "{model_type} {class}");
    let quick = inspect_quickly(dir.path()).expect("a quick report");
    assert_eq!((quick.category, quick.support, &quick.reason), (check.category, check.tier, &check.error));
    assert_eq!((&quick.model_type, &quick.architecture), (&report.model_type, &report.architecture));
    assert_eq!(quick.modalities.omni, report.modalities.omni);
    assert_eq!(detect_model_category(dir.path()), check.category);
    assert_eq!(check.supported, check.tier == Support::Native);
    assert_eq!(check.error.is_none(), check.supported);
    (check.category, check.tier, is_omni_model(dir.path()))
}

#[test]
fn well_known_models_are_identified() {
    use Category::*;
    use Support::*;
    for (model_type, class, expected) in [
        ("llama", "LlamaForCausalLM", (Transformers, Native, false)),
        ("mistral", "MistralForCausalLM", (Transformers, Native, false)),
        ("qwen2", "Qwen2ForCausalLM", (Transformers, Native, false)),
        ("qwen3", "Qwen3ForCausalLM", (Transformers, Native, false)),
        ("gemma2", "Gemma2ForCausalLM", (Transformers, Native, false)),
        ("phi3", "Phi3ForCausalLM", (Transformers, Native, false)),
        ("falcon", "FalconForCausalLM", (Transformers, Native, false)),
        ("deepseek_v3", "DeepseekV3ForCausalLM", (Transformers, Native, false)),
        ("glm4_moe_lite", "Glm4MoeLiteForCausalLM", (Transformers, Native, false)),
        ("agent_cpm", "Qwen3ForCausalLM", (Transformers, Native, false)),
        ("step_robotics", "Step3VL10BForCausalLM", (Transformers, Native, false)),
        ("llava", "LlavaForConditionalGeneration", (Transformers, InspectOnly, false)),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", (Transformers, InspectOnly, false)),
        ("qwen2_audio", "Qwen2AudioForConditionalGeneration", (Transformers, InspectOnly, false)),
        ("gemma3n", "Gemma3nForConditionalGeneration", (Transformers, InspectOnly, false)),
        ("t5", "T5ForConditionalGeneration", (Transformers, InspectOnly, false)),
        ("t5", "T5EncoderModel", (Embedding, InspectOnly, false)),
        ("made_up", "MadeUpForCausalLM", (Transformers, InspectOnly, false)),
        ("qwen2_5_omni", "Qwen2_5OmniForConditionalGeneration", (Transformers, InspectOnly, true)),
        ("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", (Transformers, InspectOnly, true)),
        ("any-to-any", "AnyToAnyModel", (Transformers, InspectOnly, true)),
        ("janus", "JanusForConditionalGeneration", (Transformers, InspectOnly, true)),
        ("siglip", "SiglipModel", (VisionEncoder, InspectOnly, false)),
        ("dinov2", "Dinov2Model", (VisionEncoder, InspectOnly, false)),
        ("clip_vision_model", "CLIPVisionModel", (VisionEncoder, InspectOnly, false)),
        ("whisper", "WhisperForConditionalGeneration", (Asr, Native, false)),
        ("speech_to_text", "Speech2TextForConditionalGeneration", (Asr, InspectOnly, false)),
        ("wav2vec2", "Wav2Vec2ForCTC", (AudioEncoder, InspectOnly, false)),
        ("hubert", "HubertModel", (AudioEncoder, InspectOnly, false)),
        ("xlm-roberta", "XLMRobertaModel", (Embedding, InspectOnly, false)),
        ("modernbert", "ModernBertModel", (Embedding, InspectOnly, false)),
    ] {
        assert_eq!(identify(model_type, class), expected, "{model_type} {class}");
    }
}

#[test]
fn a_quick_report_has_the_family_and_the_error_of_the_full_one() {
    let refused = [
        with_config(json!({"model_type": "made_up", "architectures": ["MadeUpForCausalLM"]})),
        with_config(json!({"model_type": "siglip", "architectures": ["SiglipModel"]})),
        with_config(json!({"architectures": ["LlamaForCausalLM"]})),
        dir_with(&[("config.json", b"{")]),
        dir_with(&[("params.npz", b"PK")]),
        dir_with(&[("model.gguf", b"GGUF, but truncated")]),
        dir_with(&[("a", b"GGUF"), ("b", b"GGUF")]),
        dir_with(&[("notes.txt", b"x")]),
        dir_with(&[]),
    ];
    for dir in &refused {
        let (quick, full) = (inspect_quickly(dir.path()), inspect(dir.path()));
        let (quick, full) = (quick.expect("a quick report"), full.expect("a report"));
        assert!(quick.reason.is_some());
        assert_eq!((&quick.reason, quick.support, quick.category), (&full.reason, full.support, full.category));
        assert_eq!(quick.problems[0], full.problems[0]);
    }
    for name in golden::one_per_type() {
        let (quick, full) = (inspect_quickly(&golden(&name)), inspect(&golden(&name)));
        let (quick, full) = (quick.expect("a quick report"), full.expect("a report"));
        assert!(quick.runs() && quick.family == full.family && quick.family.is_some(), "{name}: {quick:#?}");
        assert_eq!((quick.format, quick.quantization), (full.format, full.quantization), "{name}");
        // The facts that need headers are left out.
        assert!(quick.strategies.is_none() && quick.parameters == 0 && quick.memory.is_none(), "{name}");
    }
    assert!(inspect_quickly(Path::new("/no/such/place")).is_err());
}

#[test]
fn a_model_without_a_known_type_is_identified_by_its_class_in_any_spelling() {
    for (class, expected) in [
        ("SigLIPModel", Category::VisionEncoder),
        ("DINOv2Model", Category::VisionEncoder),
        ("whisperforconditionalgeneration", Category::Asr),
        ("WAVLMMODEL", Category::AudioEncoder),
        ("BertModel", Category::Embedding),
        ("Grok1ForCausalLM", Category::Transformers),
        ("AcmeForObjectDetection", Category::VisionEncoder),
    ] {
        let dir = with_config(json!({"architectures": [class]}));
        assert_eq!(detect_model_category(dir.path()), expected, "{class}");
    }
    let timm =
        with_config(json!({"architecture": "vit_base_patch16_224", "pretrained_cfg": {"input_size": [3, 224, 224]}}));
    assert!(is_vision_encoder(timm.path()));
    let dir = with_config(json!({"architectures": ["LlamaForCausalLM"]}));
    let check = is_model_supported(dir.path());
    assert_eq!((check.category, check.tier), (Category::Transformers, Support::InspectOnly));
    assert!(check.error.is_some_and(|error| error.contains("no `model_type`")));
}

#[test]
fn talkers_quantization_code_and_size_are_reported() {
    let config = json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "talker_config": {}, "audio_config": {},
        "quantization_config": {"quant_method": "gptq", "bits": 4}, "auto_map": {"AutoConfig": "a.B"}});
    let dir = with_config(config);
    let info = get_model_info(dir.path());
    assert!(info.has_talker && info.is_quantized && info.has_custom_files && info.is_supported && info.error.is_none());
    assert!(is_omni_model(dir.path()), "it has speech output");
    assert_eq!((info.size, info.architecture.as_deref()), (None, Some("LlamaForCausalLM")));
    assert_eq!(Some(info.name.as_str()), dir.path().file_name().and_then(|name| name.to_str()));

    let info = get_model_info(&golden("llama"));
    assert_eq!(info.size, Some(inspect(&golden("llama")).expect("a report").parameters));
    assert!(!info.has_talker && !info.is_quantized && !info.has_custom_files && info.is_supported);

    let dir =
        dir_with(&[("config.json", br#"{"model_type": "made_up"}"#), ("modeling_made_up.py", b"raise SystemExit")]);
    let info = get_model_info(dir.path());
    assert!(
        info.has_custom_files && !info.is_supported,
        "custom code is never executed, so it does not make a model supported"
    );
}

#[test]
fn an_encoder_that_is_not_a_decoder_is_not_native() {
    let config = fs::read(golden("bert").join("config.json")).expect("a golden model");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    assert!(is_model_supported(&golden("bert")).supported);
    config["is_decoder"] = false.into();
    let dir = with_config(config);
    let (check, report) = (is_model_supported(dir.path()), inspect(dir.path()).expect("a report"));
    assert_eq!((check.tier, report.support), (Support::InspectOnly, Support::InspectOnly));
}

#[test]
fn pipelines_need_no_config_json() {
    for dir in [
        dir_with(&[("model_index.json", br#"{"_class_name": "FluxPipeline"}"#)]),
        dir_with(&[("unet/config.json", b"{}"), ("vae/config.json", b"{}")]),
        with_config(json!({"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30.0"})),
    ] {
        assert!(is_diffusers_model(dir.path()) && !is_sae_model(dir.path()) && !is_vision_encoder(dir.path()));
        let check = is_model_supported(dir.path());
        assert_eq!((check.category, check.tier, check.supported), (Category::Diffusers, Support::InspectOnly, false));
    }
}

#[test]
fn directories_named_after_sites_are_saes() {
    for site in ["resid_post", "mlp_out", "attn_out", "transcoder", "resid_post_all", "crosscoder"] {
        let file = format!("{site}/layer_3_width_16k_l0_small/config.json");
        let dir = dir_with(&[(&file, br#"{"model_name": "google/gemma-3-1b"}"#)]);
        assert!(is_sae_model(dir.path()), "{site}");
        assert_eq!(get_sae_base_model(dir.path()).as_deref(), Some("google/gemma-3-1b"), "{site}");
        assert_eq!(is_model_supported(dir.path()).tier, Support::InspectOnly);
    }
    assert!(!is_sae_model(&golden("llama")) && get_sae_base_model(&golden("llama")).is_none());
}

#[test]
fn weights_without_a_config_are_identified_by_their_tensor_names() {
    let weights = |names: &[&str]| {
        let tensors: serde_json::Map<String, Value> = names
            .iter()
            .map(|name| (name.to_string(), json!({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})))
            .collect();
        let header = Value::from(tensors).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
        dir_with(&[("model.safetensors", &bytes)])
    };
    for (names, expected) in [
        (&["model.embed_tokens.weight", "lm_head.weight"][..], Category::Transformers),
        (&["W_enc", "W_dec", "b_dec"], Category::Sae),
        (&["encoder.weight", "decoder.weight"], Category::Sae),
        (&["down_blocks.0.resnets.0.conv1.weight"], Category::Diffusers),
        (&["base_model.model.q_proj.lora_A.weight"], Category::Adapter),
        (&["vision_model.encoder.layers.0.mlp.fc1.weight"], Category::VisionEncoder),
        (&["model.encoder.conv1.weight", "model.decoder.layers.0.encoder_attn.k_proj.weight"], Category::Asr),
        (&["bert.encoder.layer.0.attention.self.query.weight"], Category::Embedding),
        (&["something.else"], Category::Unknown),
    ] {
        assert_eq!(detect_model_category(weights(names).path()), expected, "{names:?}");
    }
}

#[test]
fn bad_input_is_reported_and_never_panics() {
    for (dir, expected) in [
        (dir_with(&[]), "no config.json"),
        (dir_with(&[("config.json", b"{")]), "not valid JSON"),
        (dir_with(&[("config.json", b"[1, 2]")]), "not a JSON object"),
        (dir_with(&[("config.json", b"\xff\xfe{}")]), "not valid JSON"),
        (dir_with(&[("config.json", br#"{"model_type": "llama", "model_type": "gpt2"}"#)]), "occurs twice"),
        (dir_with(&[("config.json", &vec![b' '; 40 << 20])]), "the limit for such files is"),
        (dir_with(&[("config.json", b"version https://git-lfs.github.com/spec/v1\noid")]), "Git LFS pointer"),
        (dir_with(&[("config.json", b"{}")]), "neither a `model_type` nor a class"),
    ] {
        let (check, info) = (is_model_supported(dir.path()), get_model_info(dir.path()));
        assert_eq!((check.category, check.tier), (Category::Unknown, Support::Unsupported), "{expected}");
        assert!(check.error.as_deref().is_some_and(|error| error.contains(expected)), "{expected}: {check:?}");
        assert_eq!(info.error, check.error);
        assert!(!is_omni_model(dir.path()) && !is_sae_model(dir.path()) && !is_asr_model(dir.path()));
    }
    let check = is_model_supported(Path::new("/no/such/place"));
    assert!(check.error.is_some_and(|error| error.contains("/no/such/place")));
    let file = dir_with(&[("notes.txt", b"x")]);
    assert!(is_model_supported(&file.path().join("notes.txt")).error.is_some());
}

#[test]
fn a_registered_type_loads_as_its_family_with_a_warning() {
    let config = fs::read_to_string(golden("llama").join("config.json")).expect("a golden model");
    let config = config.replace("\"model_type\": \"llama\"", "\"model_type\": \"registered_llm\"");
    let weights = fs::read(golden("llama").join("model.safetensors")).expect("a golden model");
    let dir = dir_with(&[("config.json", config.as_bytes()), ("model.safetensors", &weights)]);
    let open = || LoadedModel::open(dir.path(), &LoadOptions::default(), &mut |_| {});

    assert!(!is_model_supported(dir.path()).supported && open().is_err());
    register_architecture("registered_llm", "llama").expect("registered");
    assert_eq!(family_of("registered_llm"), Some("llama"));
    assert!(is_model_supported(dir.path()).supported);
    let report = inspect(dir.path()).expect("a report");
    assert!(report.runs() && report.registered_as.as_deref() == Some("llama"), "{report:#?}");
    assert!(report.card().contains("runs as       llama, the family its type is registered as"), "{}", report.card());
    let loaded = open().expect("it runs");
    assert!(loaded.warnings[0].contains("it runs as `llama` because the type is registered as that"));
}
