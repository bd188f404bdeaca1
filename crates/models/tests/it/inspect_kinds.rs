//! Reports of multimodal models and pipelines, loading strategies in reports, and the JSON schema.

use crate::directories::{dir_with, golden};
use pellucid_models::inspect::{Category, LoadMode, PartRole, schema};
use pellucid_models::{LoadOptions, inspect, strategies};
use serde_json::{Value, json};

/// A safetensors file of f32 vectors of these lengths.
fn weights(tensors: &[(&str, u64)]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, length) in tensors {
        header
            .insert((*name).into(), json!({"dtype": "F32", "shape": [length], "data_offsets": [at, at + length * 4]}));
        at += length * 4;
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; at as usize]].concat()
}

#[test]
fn an_omni_model_reports_its_parts_and_the_size_of_partial_loads() {
    let config = json!({"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniForConditionalGeneration"], "dtype": "bfloat16",
        "thinker_config": {"text_config": {"num_hidden_layers": 36, "hidden_size": 2048}, "audio_config": {}, "vision_config": {}},
        "talker_config": {}, "token2wav_config": {}});
    let tensors = weights(&[
        ("thinker.model.embed_tokens.weight", 50),
        ("thinker.lm_head.weight", 50),
        ("thinker.audio_tower.conv1.weight", 20),
        ("thinker.visual.blocks.0.attn.q.weight", 30),
        ("talker.model.embed_tokens.weight", 7),
        ("token2wav.code2wav_dit_model.proj.weight", 3),
    ]);
    let dir = dir_with(&[("config.json", config.to_string().as_bytes()), ("model.safetensors", &tensors)]);
    let report = inspect(dir.path()).expect("a report");
    let found = &report.modalities;
    assert!(found.omni && found.vision && found.audio && found.talker);
    let parts: Vec<(PartRole, u64, usize)> = found.parts.iter().map(|p| (p.role, p.parameters, p.tensors)).collect();
    let expected = [
        (PartRole::Text, 100, 2),
        (PartRole::Vision, 30, 1),
        (PartRole::Audio, 20, 1),
        (PartRole::Talker, 7, 1),
        (PartRole::Voice, 3, 1),
    ];
    assert_eq!(parts, expected);
    let loads: Vec<(LoadMode, u64)> = found.loads.iter().map(|load| (load.mode, load.parameters)).collect();
    assert_eq!(loads, [(LoadMode::ThinkerOnly, 150), (LoadMode::TalkerOnly, 10), (LoadMode::Full, 160)]);
    assert_eq!(found.loads[1].parts, [PartRole::Talker, PartRole::Voice]);
    assert_eq!((report.dtype.as_deref(), report.layers, report.parameters), (Some("bfloat16"), Some(36), 160));
    let card = report.card();
    assert!(card.contains("omni          yes; loadable as thinker-only 150, talker-only 10, full 160"), "{card}");
    assert!(card.contains("parts         text 100, vision 30, audio 20, talker 7, voice 3"), "{card}");

    // The parts are known without weights, too.
    let dir = dir_with(&[("config.json", config.to_string().as_bytes())]);
    let found = inspect(dir.path()).expect("a report").modalities;
    assert!(found.parts.iter().map(|part| part.role).eq(expected.iter().map(|(role, ..)| *role)));
}

#[test]
fn a_vision_language_model_is_not_omni_and_a_text_model_has_no_parts() {
    let config = json!({"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_config": {}, "text_config": {}});
    let tensors = weights(&[
        ("language_model.lm_head.weight", 8),
        ("vision_tower.x.weight", 4),
        ("multi_modal_projector.weight", 2),
    ]);
    let dir = dir_with(&[("config.json", config.to_string().as_bytes()), ("model.safetensors", &tensors)]);
    let found = inspect(dir.path()).expect("a report").modalities;
    assert!(!found.omni && found.vision && !found.audio && !found.talker && found.loads.is_empty());
    let parts: Vec<(PartRole, u64)> = found.parts.iter().map(|part| (part.role, part.parameters)).collect();
    assert_eq!(parts, [(PartRole::Text, 8), (PartRole::Vision, 4), (PartRole::Projector, 2)]);
    let plain = inspect(&golden("llama")).expect("a report").modalities;
    assert_eq!(plain, Default::default());
}

#[test]
fn a_pipeline_lists_its_components_and_what_is_missing() {
    let index = json!({"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.30", "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"], "safety_checker": [null, null], "requires_safety_checker": false});
    let dir = dir_with(&[
        ("model_index.json", index.to_string().as_bytes()),
        ("unet/diffusion_pytorch_model.safetensors", &weights(&[("conv_in.weight", 12)])),
    ]);
    let report = inspect(dir.path()).expect("a report");
    assert_eq!(
        (report.category, report.architecture.as_deref()),
        (Category::Diffusers, Some("StableDiffusionPipeline"))
    );
    let components: Vec<(&str, bool)> = report.components.iter().map(|c| (c.name.as_str(), c.present)).collect();
    assert_eq!(components, [("unet", true), ("vae", false)]);
    assert_eq!(report.parameters, 12);
    assert!(report.card().contains("components    unet, vae; missing: vae"), "{}", report.card());
}

#[test]
fn a_report_includes_the_loading_strategies() {
    let report = inspect(&golden("llama")).expect("a report");
    assert_eq!(report.strategies, Some(strategies(&golden("llama"), &LoadOptions::default())));
    assert!(report.explanation().contains("\n  native family: taken: `llama`"), "{}", report.explanation());
    let written = serde_json::to_value(&report).expect("JSON");
    assert_eq!(validate(&written, &schema(), &schema()), Ok(()));
}

/// Validates a value against a JSON schema, for the keywords that our schema uses. Strict: a key
/// that the schema does not list is an error.
fn validate(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let fail = |what: String| Err(format!("{what}: {value} does not match {schema}"));
    if let Some(name) = schema["$ref"].as_str() {
        let target = root.pointer(name.trim_start_matches('#')).ok_or_else(|| name.to_owned())?;
        return validate(value, target, root);
    }
    for list in ["anyOf", "oneOf"] {
        if let Some(options) = schema[list].as_array() {
            return if options.iter().any(|option| validate(value, option, root).is_ok()) {
                Ok(())
            } else {
                fail(list.into())
            };
        }
    }
    if let Some(constant) = schema.get("const") {
        return if constant == value { Ok(()) } else { fail("const".into()) };
    }
    if let Some(options) = schema["enum"].as_array() {
        return if options.contains(value) { Ok(()) } else { fail("enum".into()) };
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return fail("no type".into()),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !kinds.contains(&kind) {
        return fail("type".into());
    }
    for item in value.as_array().into_iter().flatten() {
        validate(item, &schema["items"], root)?;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let inside = schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
        let Some(inside) = inside else { return fail(format!("the key {key}")) };
        validate(inner, inside, root)?;
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match required.into_iter().find(|key| value.get(key).is_none()) {
        Some(key) => fail(format!("{key} is missing")),
        None => Ok(()),
    }
}

#[test]
fn reports_of_all_kinds_match_the_schema() {
    let schema = schema();
    let empty = dir_with(&[]);
    let sae = dir_with(&[("cfg.json", br#"{"model_name": "m"}"#), ("sae_weights.safetensors", b"")]);
    let pipeline = dir_with(&[("model_index.json", br#"{"unet": ["diffusers", "X"]}"#)]);
    let omni =
        dir_with(&[("config.json", br#"{"model_type": "qwen2_5_omni", "talker_config": {}, "thinker_config": {}}"#)]);
    for path in
        [golden("llama").as_path(), golden("mixtral").as_path(), empty.path(), sae.path(), pipeline.path(), omni.path()]
    {
        let report = serde_json::to_value(inspect(path).expect("a report")).expect("JSON");
        validate(&report, &schema, &schema).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        let mut wrong = report.clone();
        wrong["category"] = "else".into();
        assert!(validate(&wrong, &schema, &schema).is_err());
        wrong = report;
        wrong.as_object_mut().expect("an object").remove("support");
        assert!(validate(&wrong, &schema, &schema).is_err());
    }
}
