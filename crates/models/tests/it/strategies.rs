//! Loading strategies: their order, the reason for each outcome, and their list in an error.

use golden::temp_models::{self, changed, logits, renamed};
use pellucid_engine::Remedy;
use pellucid_models::AttemptOutcome::{Failed, NotNeeded, Passed, Taken};
use pellucid_models::{AttemptOutcome, Error, LoadOptions, LoadedModel, Strategy, strategies};
use serde_json::json;
use std::path::Path;

fn options(assume: Option<&str>) -> LoadOptions {
    LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() }
}

fn outcomes(path: &Path, assume: Option<&str>) -> Vec<AttemptOutcome> {
    let attempts = strategies(path, &options(assume));
    assert_eq!(attempts.iter().map(|attempt| attempt.strategy).collect::<Vec<_>>(), Strategy::ALL);
    assert!(attempts.iter().all(|attempt| !attempt.reason.is_empty()), "{attempts:?}");
    attempts.iter().map(|attempt| attempt.outcome).collect()
}

fn load(path: &Path, assume: Option<&str>) -> Result<LoadedModel, Error> {
    LoadedModel::open(path, &options(assume), &mut |_| {})
}

#[test]
fn each_kind_of_model_has_its_strategy() {
    let llama = golden::path("llama");
    assert_eq!(outcomes(&llama, None), [Taken, NotNeeded, NotNeeded, NotNeeded, NotNeeded]);
    assert_eq!(load(&llama, None).expect("native").strategy, Strategy::Native);

    let custom = changed("qwen3", |config| config["model_type"] = json!("agent_cpm"), |_| {});
    assert_eq!(outcomes(custom.path(), None), [Passed, Taken, NotNeeded, NotNeeded, NotNeeded]);
    let loaded = load(custom.path(), None).expect("mapped");
    assert_eq!(loaded.strategy, Strategy::Mapped);
    assert_eq!(logits(&loaded), logits(&load(&golden::path("qwen3"), None).expect("native")));
    assert!(
        loaded.warnings[0].contains("`agent_cpm`") && loaded.warnings[0].contains("registered"),
        "{:?}",
        loaded.warnings
    );

    let unknown = changed("llama", |config| config["model_type"] = json!("acme_llm"), |_| {});
    assert_eq!(outcomes(unknown.path(), None), [Passed; 5]);
    assert_eq!(outcomes(unknown.path(), Some("llama")), [Passed, Passed, Taken, NotNeeded, NotNeeded]);
    assert_eq!(load(unknown.path(), Some("llama")).expect("assumed").strategy, Strategy::Assumed);

    let adapter = tempfile::tempdir().expect("a directory");
    let settings = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": llama.to_str(),
                          "target_modules": ["q_proj"]});
    std::fs::write(adapter.path().join("adapter_config.json"), settings.to_string()).expect("written");
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let factor = |shape: [usize; 2]| (safetensors::Dtype::F32, shape.to_vec(), vec![0; 4 * shape[0] * shape[1]]);
    let factors =
        [(format!("{module}.lora_A.weight"), factor([2, 32])), (format!("{module}.lora_B.weight"), factor([32, 2]))];
    temp_models::write(&adapter.path().join("adapter_model.safetensors"), &factors.into_iter().collect());
    assert_eq!(outcomes(adapter.path(), None), [Passed, Passed, Passed, Taken, NotNeeded]);
    let loaded = load(adapter.path(), None).expect("merged");
    assert_eq!(loaded.strategy, Strategy::Adapter);
    assert_eq!(logits(&loaded), logits(&load(&llama, None).expect("native")));
}

#[test]
fn a_mapped_type_must_fit_its_family() {
    let other = changed("gpt2", |config| config["model_type"] = json!("agent_cpm"), |_| {});
    assert_eq!(outcomes(other.path(), None), [Passed, Failed, Passed, Passed, Passed]);
    assert!(load(other.path(), None).map(|_| ()).expect_err("no Qwen").to_string().contains("does not fit `qwen3`"));
    let custom = changed("qwen3", |config| config["model_type"] = json!("agent_cpm"), |_| {});
    let error = load(custom.path(), Some("llama")).map(|_| ()).expect_err("two families");
    assert!(error.to_string().contains("mapped to `qwen3`"), "{error}");
}

#[test]
fn an_error_lists_the_attempted_strategies() {
    let unknown = changed("llama", |config| config["model_type"] = json!("acme_llm"), |_| {});
    let error = load(unknown.path(), None).map(|_| ()).expect_err("unknown");
    assert!(matches!(&error, Error::Load { attempts, .. } if attempts.len() == 5));
    assert!(matches!(error.cause(), Error::Unsupported { .. }));
    let text = error.to_string();
    for expected in [
        "fit `llama`",
        "strategies that were tried:",
        "native family: passed over: `acme_llm` is not a native type",
        "mapped custom type: passed over: the type is mapped to no family",
        "assumed family: passed over: no family was named (`assume`)",
        "adapter merge: passed over",
        "GGUF: passed over: the directory has a config.json",
    ] {
        assert!(text.contains(expected), "{text:?} does not contain {expected:?}");
    }
    assert_eq!(error.remedy(), Some(&Remedy::Assume { family: "llama".into(), also: None }));

    let empty = tempfile::tempdir().expect("a directory");
    std::fs::write(empty.path().join("model.gguf"), "GGUF").expect("written");
    let text = load(empty.path(), None).map(|_| ()).expect_err("no model").to_string();
    assert!(
        text.contains("native family: passed over: there is no config.json")
            && text.contains("GGUF: failed: see above"),
        "{text}"
    );

    // The cause of a failed strategy is reported once.
    let broken = changed("llama", |_| {}, |tensors| drop(tensors.remove("model.norm.weight")));
    let text = load(broken.path(), None).map(|_| ()).expect_err("a norm is missing").to_string();
    assert_eq!(text.matches("model.norm.weight").count(), 1, "{text}");
    assert!(text.contains("native family: failed: see above"), "{text}");
    assert_eq!(outcomes(Path::new("nowhere"), None), [Passed; 5]);
    let file = empty.path().join("model.gguf");
    assert_eq!(outcomes(&file, None), [Passed, Passed, Passed, Passed, Failed]);
}

#[test]
fn an_explanation_lists_the_name_variants_and_serializes() {
    let dir = renamed("llama", |name| format!("module.{name}"));
    let attempts = strategies(dir.path(), &LoadOptions::default());
    let text = attempts[0].to_string();
    assert!(text.starts_with("native family: taken: `llama`, and every weight is there; "), "{text}");
    assert!(text.contains("the prefix `module.model.` is read as `model.`"), "{text}");
    let json = serde_json::to_value(&attempts).expect("plain data");
    assert_eq!((&json[0]["strategy"], &json[0]["outcome"]), (&json!("native"), &json!("taken")));
    assert_eq!((&json[4]["strategy"], &json[4]["outcome"]), (&json!("gguf"), &json!("not_needed")));
}
