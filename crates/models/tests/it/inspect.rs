//! `inspect` on the golden models, on directories that are not models, and on malicious files.

use crate::directories::{dir_with, golden};
use golden::temp_models::{changed, copy};
use pellucid_models::inspect::{Category, Format, Report, Support, TokenizerState};
use pellucid_models::tokenizer::Tokenizer;
use pellucid_models::{LoadOptions, LoadedModel, inspect};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Inspects a path and asserts the properties that every report has.
fn inspect_checked(path: &Path) -> Report {
    let report = inspect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(report.runs(), report.problems.is_empty(), "{report:#?}");
    assert_eq!(report.reason.is_none(), report.problems.is_empty(), "{report:#?}");
    assert!(
        report.problems.iter().all(|problem| !problem.what.is_empty() && !problem.remedy.to_string().is_empty()),
        "{report:#?}"
    );
    let json = serde_json::to_value(&report).expect("a report is JSON");
    assert_eq!(json["category"], report.category.name());
    assert_eq!(json["support"], report.support.name());
    let card = report.card();
    let last = card.lines().last().expect("a last line");
    assert_eq!(last == "It will run.", report.runs(), "{card}");
    assert!(report.runs() || last.starts_with("It will not run"), "{card}");
    report
}

fn with_config(config: Value, files: &[(&str, &[u8])]) -> TempDir {
    let config = config.to_string();
    let all: Vec<(&str, &[u8])> =
        [("config.json", config.as_bytes())].into_iter().chain(files.iter().copied()).collect();
    dir_with(&all)
}

/// A safetensors file of f32 tensors with these shapes, filled with zeros.
fn safetensors(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * 4;
        header.insert((*name).into(), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; at as usize]].concat()
}

#[test]
fn every_golden_model_runs_and_its_parameters_are_counted() {
    for name in golden::names() {
        let report = inspect_checked(&golden(&name));
        assert!(
            report.runs()
                && (report.category == Category::Transformers || name.starts_with("whisper"))
                && report.support == Support::Native,
            "{name}: {report:#?}"
        );
        let loaded = LoadedModel::open(&golden(&name), &LoadOptions::default(), &mut |_| {}).expect("it runs");
        let architecture = loaded.model.program().architecture();
        assert_eq!(report.layers, Some(architecture.layers.len()), "{name}");
        // Gemma 3 has a vision tower, whose parameters are counted but not loaded.
        let needed: usize =
            loaded.model.program().weights().iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
        let vision = report.architecture.as_deref() == Some("Gemma3ForConditionalGeneration");
        // Decoders of encoder-decoder models have cross-attention, which is not loaded.
        let cross_attention = ["bart", "mbart", "pegasus", "blenderbot", "marian", "trocr", "whisper"]
            .contains(&architecture.family.as_str());
        // Zamba 2 stores the first projection of its adapters as one tensor for two weights.
        let shared = architecture.family == "zamba2";
        assert!(
            report.parameters == needed as u64
                || (shared && report.parameters < needed as u64)
                || ((vision || cross_attention) && report.parameters > needed as u64),
            "{name}: {}",
            report.parameters
        );
        assert_eq!(report.dtypes.values().sum::<u64>(), report.parameters, "{name}");
        assert_eq!(report.tokenizer.state, TokenizerState::Missing, "{name}");
    }
}

#[test]
fn a_llama_is_described_in_full() {
    let report = inspect_checked(&golden("llama"));
    let sizes =
        [report.layers, report.width, report.heads, report.kv_heads, report.head_dim, report.context, report.vocab];
    assert_eq!(sizes, [3, 32, 4, 2, 8, 64, 96].map(Some));
    assert_eq!(report.model_type.as_deref(), Some("llama"));
    assert_eq!(report.architecture.as_deref(), Some("LlamaForCausalLM"));
    let memory = report.memory.expect("it is known");
    assert_eq!((memory.as_stored, memory.f32), (report.parameters * 4, report.parameters * 4));
    assert_eq!((memory.kv_per_token, memory.kv_at_context), (Some(3 * 2 * 16 * 4), Some(3 * 2 * 16 * 4 * 64)));
    let half = inspect_checked(&golden("llama-bf16")).memory.expect("it is known");
    assert_eq!((half.as_stored, half.f32), (half.bf16, memory.f32));
    // A tied embedding counts once.
    assert!(inspect_checked(&golden("llama-tied")).parameters < report.parameters);
}

#[test]
fn the_report_of_the_builtin_tokenizer_agrees_with_the_loaded_one() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("builtin");
    let report = inspect_checked(&dir);
    let tokenizer = Tokenizer::from_dir(&dir).expect("valid").expect("there");
    assert_eq!(report.tokenizer.state, TokenizerState::Present);
    assert_eq!(report.tokenizer.vocab, Some(tokenizer.vocab_size()));
    assert_eq!(report.tokenizer.adds_bos, Some(tokenizer.adds_bos()));
}

#[test]
fn the_card_is_readable() {
    let card = inspect_checked(&golden("llama-sharded")).card();
    for expected in [
        "architecture  LlamaForCausalLM · llama",
        "support       native\n",
        "parameters    2",
        " K parameters in ",
        "in 4 files",
        "3 layers, width 32, 4 heads (2 KV heads)",
    ] {
        assert!(card.contains(expected), "{expected}:\n{card}");
    }
    let hostile = with_config(json!({"model_type": "x\u{1b}[2J\n", "architectures": ["Y".repeat(5000)]}), &[]);
    let card = inspect_checked(hostile.path()).card();
    assert!(!card.contains('\u{1b}') && card.len() < 4000, "{card}");
}

#[test]
fn an_unfinished_download_is_native_and_does_not_run() {
    let dir = copy("llama-sharded");
    fs::remove_file(dir.path().join("model-00002-of-00004.safetensors")).expect("removed");
    let report = inspect_checked(dir.path());
    assert_eq!((report.support, report.shards.count), (Support::Native, 4));
    assert_eq!(report.shards.missing, ["model-00002-of-00004.safetensors"]);
    assert!(report.parameters > 0 && report.parameters < inspect_checked(&golden("llama")).parameters);
    assert!(report.card().contains("download was not finished"), "{}", report.card());

    // Without the index, the file names give the number of shards.
    fs::remove_file(dir.path().join("model.safetensors.index.json")).expect("removed");
    let report = inspect_checked(dir.path());
    assert_eq!((report.shards.count, report.shards.missing.len()), (4, 1));

    let cut = copy("llama");
    let file = cut.path().join("model.safetensors");
    let bytes = fs::read(&file).expect("read");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    let report = inspect_checked(cut.path());
    assert!(report.reason.as_deref().is_some_and(|reason| reason.contains("model.safetensors")), "{report:#?}");
    assert_eq!(report.parameters, inspect_checked(&golden("llama")).parameters, "the header is complete");

    let pointer = copy("llama");
    fs::write(pointer.path().join("model.safetensors"), "version https://git-lfs.github.com/spec/v1\n")
        .expect("written");
    assert!(inspect_checked(pointer.path()).card().contains("git lfs pull"));
}

#[test]
fn surplus_shards_and_missing_tensors_are_named() {
    let dir = copy("llama");
    fs::write(dir.path().join("model-00001-of-00002.safetensors"), b"").expect("written");
    let report = inspect_checked(dir.path());
    assert!(report.runs());
    assert_eq!(report.shards.surplus, ["model-00001-of-00002.safetensors"]);

    let dir = copy("llama");
    let config = fs::read_to_string(dir.path().join("config.json"))
        .expect("read")
        .replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
    fs::write(dir.path().join("config.json"), config).expect("written");
    let report = inspect_checked(dir.path());
    assert_eq!(report.support, Support::Native);
    assert!(report.problems[0].what.contains("missing: model.layers.3."), "{report:#?}");
}

#[test]
fn pickles_are_refused_with_a_conversion() {
    let llama = fs::read(golden("llama").join("config.json")).expect("read");
    let dir = dir_with(&[("config.json", &llama), ("pytorch_model.bin", b"\x80\x02cos\nsystem\n")]);
    let report = inspect_checked(dir.path());
    assert_eq!((report.support, report.file_bytes), (Support::Native, 13));
    assert!(
        report.problems[0].what.contains("never unpickled")
            && report.problems[0].remedy.to_string().contains("safe_serialization"),
        "{report:#?}"
    );
}

#[test]
fn quantized_weights_are_counted_unpacked_and_missing_tensors_are_named() {
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden("llama").join("config.json")).expect("read")).expect("JSON");
    config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    let q = "model.layers.0.self_attn.q_proj";
    let header = json!({format!("{q}.qweight"): {"dtype": "I32", "shape": [4, 32], "data_offsets": [0, 512]},
        format!("{q}.scales"): {"dtype": "F16", "shape": [1, 32], "data_offsets": [512, 576]}});
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 576]].concat();
    let report = inspect_checked(with_config(config, &[("model.safetensors", &file)]).path());
    assert_eq!((report.support, report.parameters), (Support::Native, 32 * 32));
    assert_eq!(report.quantization.as_ref().map(|q| (q.method.as_str(), q.bits)), Some(("gptq", Some(4))));
    assert!(
        report.reason.as_deref().is_some_and(|reason| reason.contains(&format!("{q}.qzeros is missing"))),
        "{report:#?}"
    );
}

#[test]
fn an_unsupported_quantization_method_is_named() {
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden("llama").join("config.json")).expect("read")).expect("JSON");
    config["quantization_config"] = json!({"quant_method": "hqq", "bits": 4});
    let report = inspect_checked(with_config(config, &[]).path());
    assert_eq!(report.support, Support::InspectOnly);
    assert!(report.reason.as_deref().is_some_and(|reason| reason.contains("quantized by `hqq`")), "{report:#?}");
}

#[test]
fn custom_code_and_the_nearest_family_are_named() {
    let config = json!({"model_type": "llamaish", "architectures": ["LlamaishForCausalLM"], "num_hidden_layers": 2, "hidden_size": 8,
        "num_attention_heads": 2, "auto_map": {"AutoModelForCausalLM": "modeling_llamaish.LlamaishForCausalLM", "AutoConfig": "a/b--configuration_x.X"}});
    let dir = with_config(
        config,
        &[("modeling_llamaish.py", b"raise SystemExit"), ("model.safetensors", &safetensors(&[("w", &[4, 8])]))],
    );
    let report = inspect_checked(dir.path());
    assert_eq!((report.category, report.support), (Category::Transformers, Support::InspectOnly));
    assert_eq!(report.custom_code, ["modeling_llamaish.py", "a/b--configuration_x.py"]);
    assert_eq!(report.nearest.as_deref(), Some("llama"));
    assert!(report.reason.as_deref().is_some_and(|reason| reason.contains("never executed")), "{report:#?}");
    assert_eq!((report.parameters, report.tensors, report.head_dim), (32, 1, Some(4)));
    let nearest = |config: Value| inspect_checked(with_config(config, &[]).path()).nearest;
    assert_eq!(nearest(json!({"model_type": "qwen2_vl"})).as_deref(), Some("qwen2"));
    assert_eq!(nearest(json!({"model_type": "zzzz", "n_routed_experts": 256})).as_deref(), Some("mixtral"));
    // The class has precedence over a similar type name.
    let class = json!({"model_type": "acme_llm", "architectures": ["LlamaForCausalLM"]});
    assert_eq!(nearest(class).as_deref(), Some("llama"));
    assert_eq!(nearest(json!({"model_type": "zzzz", "rms_norm_eps": 1e-5})).as_deref(), Some("llama"));
}

#[test]
fn categories_follow_model_type_and_class_in_any_spelling() {
    use Category::*;
    for (model_type, class, expected) in [
        ("whisper", "WhisperForConditionalGeneration", Asr),
        ("speech_to_text", "Speech2TextForConditionalGeneration", Asr),
        ("wav2vec2", "Wav2Vec2ForCTC", AudioEncoder),
        ("audio-spectrogram-transformer", "ASTForAudioClassification", AudioEncoder),
        ("siglip", "SiglipModel", VisionEncoder),
        ("", "SigLIPModel", VisionEncoder),
        ("siglip_vision_model", "SiglipVisionModel", VisionEncoder),
        ("clip", "CLIPModel", VisionEncoder),
        ("dinov2", "Dinov2Model", VisionEncoder),
        ("vit", "ViTForImageClassification", VisionEncoder),
        ("sapiens2", "Sapiens2ForSemanticSegmentation", VisionEncoder),
        ("qwen2_audio_encoder", "Qwen2AudioEncoder", AudioEncoder),
        ("vits", "VitsModel", Transformers),
        ("bert", "BertModel", Embedding),
        ("xlm-roberta", "XLMRobertaModel", Embedding),
        ("bert", "BertForMaskedLM", Transformers),
        ("falcon", "FalconForCausalLM", Transformers),
        ("llava", "LlavaForConditionalGeneration", Transformers),
        ("qwen2_audio", "Qwen2AudioForConditionalGeneration", Transformers),
    ] {
        let mut config = json!({"architectures": [class]});
        if !model_type.is_empty() {
            config["model_type"] = model_type.into();
        }
        let report = inspect_checked(with_config(config, &[]).path());
        // These types are native, although this configuration is incomplete; encoders are not.
        let support = if ["whisper", "falcon"].contains(&model_type) { Support::Native } else { Support::InspectOnly };
        assert_eq!((report.category, report.support), (expected, support), "{model_type} {class}");
        assert!(report.nearest.is_none() || expected == Transformers, "{class}");
    }
    let sentences: &[(&str, &[u8])] = &[("modules.json", b"[]"), ("config_sentence_transformers.json", b"{}")];
    let report = inspect_checked(
        with_config(json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}), sentences).path(),
    );
    assert_eq!((report.category, report.support), (Embedding, Support::Native));
}

#[test]
fn adapters_pipelines_and_saes_are_recognized() {
    let weights = safetensors(&[("W_enc", &[4, 8]), ("W_dec", &[8, 4])]);
    let adapter = dir_with(&[
        ("adapter_config.json", br#"{"peft_type": "LORA", "base_model_name_or_path": "meta/llama"}"#),
        ("adapter_model.safetensors", &weights),
        ("README.md", b"---\nlicense: mit\nbase_model:\n- meta/llama\n---\n"),
    ]);
    let report = inspect_checked(adapter.path());
    assert_eq!((report.category, report.support, report.parameters), (Category::Adapter, Support::InspectOnly, 64));
    assert_eq!(
        (report.base_model.as_slice(), report.license.as_deref()),
        (&["meta/llama".to_owned()][..], Some("mit"))
    );

    let pipeline = dir_with(&[
        ("model_index.json", br#"{"_class_name": "FluxPipeline"}"#),
        ("unet/diffusion_pytorch_model.safetensors", &weights),
    ]);
    let report = inspect_checked(pipeline.path());
    assert_eq!(
        (report.category, report.architecture.as_deref(), report.parameters),
        (Category::Diffusers, Some("FluxPipeline"), 64)
    );

    let config = br#"{"architecture": "jumprelu", "model_name": "gemma-2-2b", "d_in": 4}"#;
    let report = inspect_checked(dir_with(&[("cfg.json", config), ("sae_weights.safetensors", &weights)]).path());
    assert_eq!((report.category, report.base_model.as_slice()), (Category::Sae, &["gemma-2-2b".to_owned()][..]));
    let scope = dir_with(&[
        ("resid_post/layer_3_width_16k_l0_small/config.json", br#"{"width": 16384, "model_name": "g"}"#),
        ("resid_post/layer_3_width_16k_l0_small/params.safetensors", &weights),
    ]);
    assert_eq!(inspect_checked(scope.path()).category, Category::Sae);
    assert_eq!(
        inspect_checked(dir_with(&[("layer_1/width_16k/average_l0_7/params.npz", b"")]).path()).category,
        Category::Sae
    );
}

#[test]
fn unrecognized_files_are_reported_with_a_remedy() {
    assert!(inspect(Path::new("/no/such/place")).is_err());
    let reason = |dir: TempDir| {
        let report = inspect_checked(dir.path());
        assert_eq!((report.category, report.support), (Category::Unknown, Support::Unsupported), "{report:#?}");
        report.problems[0].what.clone() + ": " + &report.problems[0].remedy.to_string()
    };
    assert!(reason(dir_with(&[])).contains("empty"));
    assert!(reason(dir_with(&[("notes.txt", b"x")])).contains("no config.json"));
    assert!(
        reason(dir_with(&[("inside/config.json", br#"{"model_type": "llama"}"#)])).contains("there is one in inside")
    );
    assert!(reason(dir_with(&[("config.json", b"{\"model_type\": ")])).contains("not valid JSON"));
    assert!(reason(dir_with(&[("config.json", b"[1]")])).contains("not a JSON object"));
    assert!(reason(dir_with(&[("config.json", "[".repeat(100_000).as_bytes())])).contains("recursion limit"));
    assert!(reason(dir_with(&[("config.json", &vec![b' '; 40 << 20])])).contains("the limit for such files is"));
    assert!(reason(dir_with(&[("config.json", b"{}")])).contains("neither a `model_type` nor a class"));

    let files =
        dir_with(&[("a.safetensors", &safetensors(&[("w", &[3])])), ("b.txt", b"x"), ("c.gguf", b"GGUF\x03\0\0\0")]);
    let report = inspect_checked(&files.path().join("a.safetensors"));
    assert_eq!((report.format, report.parameters, report.support), (Format::Safetensors, 3, Support::Unsupported));
    assert!(inspect_checked(&files.path().join("b.txt")).card().contains("not a model"));
    assert!(inspect_checked(&files.path().join("c.gguf")).card().contains("the file ends"));
}

#[test]
fn sizes_that_no_model_has_are_refused_before_they_are_allocated() {
    let llama: Value =
        serde_json::from_slice(&fs::read(golden("llama").join("config.json")).expect("read")).expect("JSON");
    for (key, value) in [
        ("num_hidden_layers", json!(2147483648u64)),
        ("num_attention_heads", json!(2000000000)),
        ("hidden_size", json!(u64::MAX)),
        ("head_dim", json!(1 << 30)),
        ("num_attention_heads", json!(0)),
        ("vocab_size", json!(-1)),
        ("num_key_value_heads", json!(3)),
        ("rope_parameters", json!({"rope_theta": -1.0})),
        ("max_position_embeddings", json!(1e300)),
        ("num_hidden_layers", json!("three")),
    ] {
        let mut config = llama.clone();
        config[key] = value;
        let report = inspect_checked(with_config(config, &[]).path());
        assert!(!report.runs() && report.support == Support::Native, "{key}: {report:#?}");
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(golden("mixtral").join("config.json")).expect("read")).expect("JSON");
    config["num_local_experts"] = json!(u64::MAX);
    assert!(!inspect_checked(with_config(config, &[]).path()).runs());
}

#[test]
fn an_index_with_paths_outside_the_directory_is_not_followed() {
    let llama = fs::read(golden("llama").join("config.json")).expect("read");
    let index = br#"{"weight_map": {"a": "../../etc/passwd", "b": "x.safetensors"}}"#;
    let report = inspect_checked(dir_with(&[("config.json", &llama), ("model.safetensors.index.json", index)]).path());
    assert_eq!(report.shards.missing, ["x.safetensors"]);
    assert!(report.problems[0].what.contains("not the plain name"), "{report:#?}");
}

/// A blob of a hub's cache and a file that was renamed have no suffix.
#[test]
fn r3_a_gguf_file_needs_no_suffix() {
    for name in ["model", "sha256-0123", "model.bin"] {
        let dir = dir_with(&[(name, &crate::gguf_files::llama(1, 0))]);
        let path = dir.path().join(name);
        assert!(inspect_checked(&path).runs(), "{name}");
        let loaded = LoadedModel::open(&path, &LoadOptions::default(), &mut |_| {}).expect("a model");
        assert_eq!(loaded.model.program().architecture().layers.len(), 1);
    }
}

#[test]
fn r9_a_start_token_that_is_not_bos_is_reported() {
    let with = |post_processor: Value| {
        let dir = copy("llama");
        let file = json!({"added_tokens": [], "post_processor": post_processor,
            "model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100, "vocab": {"a": 0, "[CLS]": 1, "[SEP]": 2}}});
        fs::write(dir.path().join("tokenizer.json"), file.to_string()).expect("written");
        // This model's config.json names a bos token.
        fs::write(dir.path().join("tokenizer_config.json"), r#"{"bos_token": "<s>"}"#).expect("written");
        inspect_checked(dir.path())
    };
    let bert = with(json!({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]}));
    assert_eq!((bert.tokenizer.adds_bos, bert.tokenizer.prepends.as_deref()), (Some(false), Some("[CLS]")));
    assert!(bert.card().contains("adds [CLS]"), "{}", bert.card());
    let none = with(Value::Null);
    assert!(none.tokenizer.prepends.is_none() && none.card().contains("does not add bos"));
}

#[test]
fn r9_a_report_names_one_nearest_family_and_each_tensor_once() {
    // By its name Llama is nearest, by its tensors it is not.
    let dir = changed(
        "phi3",
        |config| {
            config["model_type"] = "llama_twist".into();
            config["architectures"] = json!(["LlamaTwistForCausalLM"]);
        },
        |tensors| drop(tensors.remove("model.layers.0.self_attn.qkv_proj.weight")),
    );
    fs::write(dir.path().join("__init__.py"), "").expect("written");
    let report = inspect_checked(dir.path());
    assert!(report.custom_code.is_empty(), "a package marker is no code: {:?}", report.custom_code);
    let card = report.card();
    let nearest = report.nearest.as_deref().expect("a family");
    let problem = report.problems.iter().find(|problem| problem.what.contains("the nearest is")).expect("a problem");
    assert!(problem.what.contains(&format!("the nearest is `{nearest}`")), "{card}");
    let name = "model.layers.0.self_attn.qkv_proj.weight";
    assert!(problem.what.matches(name).count() <= 1, "{card}");
    fs::write(dir.path().join("modeling_twist.py"), "").expect("written");
    assert_eq!(inspect_checked(dir.path()).custom_code, ["modeling_twist.py"]);
}

#[test]
fn a_unigram_token_that_is_too_long_is_reported() {
    let dir = copy("llama");
    let vocab = json!([["a", 0.0], ["b".repeat(29_000), -1.0]]);
    let file =
        json!({"added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}, "post_processor": null});
    fs::write(dir.path().join("tokenizer.json"), file.to_string()).expect("written");
    let report = inspect_checked(dir.path());
    assert_eq!((report.tokenizer.state, report.runs()), (TokenizerState::Damaged, false));
    assert!(report.reason.expect("a reason").contains("token 1 is 29000 bytes long"));
}

#[test]
fn tokenizers_that_do_not_fit_or_do_not_parse_are_reported() {
    let with = |tokenizer: &str| {
        let dir = copy("llama");
        fs::write(dir.path().join("tokenizer.json"), tokenizer).expect("written");
        inspect_checked(dir.path())
    };
    let report = with(r#"{"added_tokens": [{"id": 96, "content": "<x>"}], "model": {"vocab": {"a": 0, "<x>": 96}}}"#);
    assert_eq!(
        (report.tokenizer.state, report.tokenizer.vocab, report.runs()),
        (TokenizerState::Present, Some(2), true)
    );
    let report = with(r#"{"added_tokens": [], "model": {"vocab": {"a": 0, "b": 96}}}"#);
    assert_eq!((report.tokenizer.state, report.runs()), (TokenizerState::DoesNotFit, false));
    let report = with(r#"{"model": {"vocab": [["a", 0.0], ["b", -1.5]]}, "post_processor": null}"#);
    assert_eq!((report.tokenizer.state, report.tokenizer.vocab), (TokenizerState::Present, Some(2)));
    assert_eq!(with("{").tokenizer.state, TokenizerState::Damaged);

    let template = r#"{"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}], "special_tokens": {"<s>": {"ids": [1], "tokens": ["<s>"]}}}]},
        "model": {"vocab": {"a": 0, "<s>": 1}}}"#;
    // bos_token_id in this model's config.json is 1.
    assert_eq!(with(template).tokenizer.adds_bos, Some(true));

    let dir = copy("llama");
    fs::write(dir.path().join("tokenizer.model"), b"x").expect("written");
    fs::write(
        dir.path().join("tokenizer_config.json"),
        r#"{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}"#,
    )
    .expect("written");
    let report = inspect_checked(dir.path());
    assert_eq!(report.tokenizer.state, TokenizerState::Damaged);
    assert!(
        !report.runs()
            && report.chat_template
            && report.tokenizer.note.is_some_and(|note| note.contains("tokenizer.model"))
    );
    fs::remove_file(dir.path().join("tokenizer.model")).expect("removed");
    fs::write(dir.path().join("tokenizer_config.json"), r#"{"chat_template": "{% for"}"#).expect("written");
    // Templates are compiled when a chat is rendered.
    let report = inspect_checked(dir.path());
    assert!(report.runs() && report.chat_template);
}

#[cfg(unix)]
#[test]
fn cyclic_symlinks_and_pipes_are_ignored() {
    let dir = dir_with(&[("inside/x", b"x")]);
    std::os::unix::fs::symlink("loop", dir.path().join("loop")).expect("linked");
    std::os::unix::fs::symlink("..", dir.path().join("inside/up")).expect("linked");
    std::os::unix::fs::symlink("loop", dir.path().join("config.json")).expect("linked");
    let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("tokenizer.json")).status();
    assert_eq!(inspect_checked(dir.path()).category, Category::Unknown, "{pipe:?}");
    assert!(inspect(&dir.path().join("loop")).is_err());
}

mod gguf {
    use super::*;
    use crate::gguf_files::llama;

    #[test]
    fn a_file_is_described_by_its_header() {
        let dir = dir_with(&[("m.gguf", &llama(1, 0))]);
        let report = inspect_checked(&dir.path().join("m.gguf"));
        assert!(report.runs() && report.format == Format::Gguf, "{report:#?}");
        assert_eq!((report.model_type.as_deref(), report.license.as_deref()), (Some("llama"), Some("mit")));
        let matrices = 32 * (4 + 32 + 16 + 16 + 32 + 32 + 32 + 32);
        assert_eq!((report.parameters, report.tensors), (matrices + 3 * 32, 11));
        assert_eq!(report.quantization.as_ref().map(|q| q.types.clone()), Some(vec!["Q8_0".to_owned()]));
        assert_eq!(report.memory.as_ref().map(|memory| memory.as_stored), Some(matrices / 32 * 34 + 3 * 32 * 4));
        assert_eq!(
            (report.tokenizer.state, report.tokenizer.vocab, report.tokenizer.adds_bos),
            (TokenizerState::Rebuilt, Some(4), Some(true))
        );
        LoadedModel::open(&dir.path().join("m.gguf"), &LoadOptions::default(), &mut |_| {}).expect("it runs");
        // A directory with one GGUF file is that file.
        let report = inspect_checked(dir.path());
        assert!(report.runs() && report.format == Format::Gguf, "{report:#?}");
        LoadedModel::open(dir.path(), &LoadOptions::default(), &mut |_| {}).expect("it runs");
        assert_eq!(pellucid_models::load_tokenizer(dir.path()).expect("its tokenizer").vocab_size(), 4);
    }

    #[test]
    fn missing_tensors_and_damaged_files_are_reported() {
        let dir = dir_with(&[("lacks.gguf", &llama(1, 1)), ("deep.gguf", &llama(u32::MAX, 0))]);
        let report = inspect_checked(&dir.path().join("lacks.gguf"));
        assert!(
            report.problems[0].what.contains("missing: model.layers.0.post_attention_layernorm.weight"),
            "{report:#?}"
        );
        let report = inspect_checked(&dir.path().join("deep.gguf"));
        assert!(report.reason.as_deref().is_some_and(|reason| reason.contains("block_count")), "{report:#?}");
        // Truncated anywhere, or with any byte changed, a file gives a report without a panic.
        let whole = llama(1, 0);
        for cut in (0..whole.len()).step_by(97) {
            fs::write(dir.path().join("cut.gguf"), &whole[..cut]).expect("written");
            assert!(!inspect_checked(&dir.path().join("cut.gguf")).runs());
        }
        for at in 0..900.min(whole.len()) {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            fs::write(dir.path().join("changed.gguf"), &changed).expect("written");
            inspect_checked(&dir.path().join("changed.gguf"));
        }
    }
}
