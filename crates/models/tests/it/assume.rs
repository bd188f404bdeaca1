//! Models of an unknown type: the error suggests the family that fits, and `assume` runs the
//! model as that family, with a warning.

use golden::difference;
use golden::temp_models::with_config;
use pellucid_engine::{Plan, RunOptions};
use pellucid_models::inspect::Support;
use pellucid_models::{Error, LoadOptions, LoadedModel, inspect, inspect_as, program_of};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

/// A golden Llama with the unknown type `acme_llm`.
fn acme(change: impl FnOnce(&mut Value)) -> TempDir {
    with_config("llama", |config| {
        config["model_type"] = json!("acme_llm");
        change(config);
    })
}

fn add_tensor(dir: &Path, name: &str) {
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    let mut tensors = file.tensors();
    let data = [0; 16];
    tensors.push((name.into(), TensorView::new(Dtype::F32, vec![4], &data).expect("a tensor")));
    let bytes = safetensors::serialize(tensors, None).expect("a file");
    std::fs::write(&path, bytes).expect("written");
}

fn open(dir: &Path, assume: Option<&str>) -> Result<LoadedModel, Error> {
    let options = LoadOptions { assume: assume.map(str::to_owned), ..LoadOptions::default() };
    LoadedModel::open(dir, &options, &mut |_| {})
}

/// Asserts that loading fails. Returns the error without its list of attempts, its message and its
/// remedy.
fn refused(dir: &Path, assume: Option<&str>) -> (Error, String, String) {
    let error = open(dir, assume).map(|_| ()).expect_err("refused");
    let Error::Load { error, .. } = error else { panic!("{error} lists no attempts") };
    let (text, remedy) = (error.to_string(), error.remedy().map(ToString::to_string).unwrap_or_default());
    // `program_of`, which does not load the weights, gives the same error.
    let same = program_of(Some(dir), assume).map(|_| ()).expect_err("refused");
    assert_eq!((same.to_string(), same.remedy()), (text.clone(), error.remedy()));
    (*error, text, remedy)
}

fn logits(loaded: &LoadedModel) -> Vec<u32> {
    let run = loaded.model.run(&[vec![5, 6, 7, 8]], &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
    run.captures[0].array.values().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn an_unknown_type_is_refused_with_the_family_that_fits() {
    let dir = acme(|_| {});
    let (error, text, remedy) = refused(dir.path(), None);
    assert!(matches!(error, Error::Unsupported { .. }));
    assert!(text.contains("`acme_llm`") && text.contains("fit `llama`") && text.contains("may differ"), "{text}");
    assert!(!text.contains("does not know"), "{text}");
    assert!(remedy.contains("`LoadOptions::assume` set to `llama`"), "{remedy}");
}

#[test]
fn an_assumed_family_gives_the_bits_of_the_original_and_a_warning() {
    let original = open(&golden::path("llama"), None).expect("a native model");
    assert!(original.warnings.is_empty());
    let dir = acme(|_| {});
    let assumed = open(dir.path(), Some("llama")).expect("it fits");
    assert_eq!(logits(&assumed), logits(&original));
    assert_eq!(assumed.warnings.len(), 1);
    assert!(assumed.warnings[0].contains("`acme_llm`") && assumed.warnings[0].contains("`llama`"));
    let (program, warnings) = program_of(Some(dir.path()), Some("llama")).expect("it fits");
    assert_eq!((warnings, program.architecture()), (assumed.warnings, original.model.program().architecture()));
}

#[test]
fn keys_that_the_family_does_not_know_are_named() {
    let dir = acme(|config| {
        config["attention_multiplier"] = json!(0.5);
        config["rope_parameters"]["twist"] = json!(1);
        config["nothing"] = Value::Null;
        config["embd_pdrop"] = json!(0.1);
    });
    let (_, text, remedy) = refused(dir.path(), None);
    assert!(text.contains("keys `rope_parameters.twist`, `attention_multiplier`"), "{text}");
    assert!(!text.contains("nothing`") && !text.contains("pdrop") && !text.contains("use_cache"), "{text}");
    assert!(remedy.contains("`granite` fits too, and knows `attention_multiplier`"), "{remedy}");
    let warned = open(dir.path(), Some("llama")).expect("it fits").warnings.concat();
    assert!(warned.contains("`attention_multiplier`") && warned.contains("`rope_parameters.twist`"), "{warned}");
    let granite = open(dir.path(), Some("granite")).expect("it fits");
    assert!(!granite.warnings.concat().contains("attention_multiplier"), "{:?}", granite.warnings);
    // Control: the key matters, so the two families give different logits.
    assert_ne!(logits(&granite), logits(&open(dir.path(), Some("llama")).expect("it fits")));
}

#[test]
fn a_family_that_does_not_fit_is_not_suggested() {
    let dir = acme(|_| {});
    add_tensor(dir.path(), "model.layers.1.mlp.extra.weight");
    let (_, text, remedy) = refused(dir.path(), None);
    assert!(text.contains("the nearest is `llama`: 1 unexpected: model.layers.1.mlp.extra.weight"), "{text}");
    assert!(!remedy.contains("assume"), "{remedy}");
    let (_, text, remedy) = refused(dir.path(), Some("llama"));
    assert!(text.contains("does not fit `llama`: 1 unexpected"), "{text}");
    assert!(remedy.contains("leave out `LoadOptions::assume`"), "{remedy}");

    let (_, text, _) = refused(acme(|config| config["hidden_size"] = json!(64)).path(), None);
    assert!(text.contains("no native family fits") && text.contains("of the wrong shape"), "{text}");
    let (_, text, _) = refused(acme(|config| *config = json!({"model_type": "acme_llm"})).path(), None);
    assert!(text.contains("the nearest is `llama`") && text.contains("`hidden_size` is missing"), "{text}");
    // Without weights there is nothing to compare.
    let dir = acme(|_| {});
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    assert!(refused(dir.path(), None).1.ends_with("do not run natively in this build"));
}

#[test]
fn a_missing_type_gets_the_same_suggestion() {
    for missing in [Value::Null, json!(7)] {
        let dir = with_config("qwen2", |config| config["model_type"] = missing);
        let (error, text, remedy) = refused(dir.path(), None);
        assert!(matches!(error, Error::Invalid { .. }), "{text}");
        assert!(text.contains("config.json") && text.contains("no `model_type`"), "{text}");
        assert!(
            text.contains("fit `qwen2`") && remedy.contains("`LoadOptions::assume` set to `qwen2`"),
            "{text} {remedy}"
        );
        let assumed = open(dir.path(), Some("qwen2")).expect("it fits");
        assert_eq!(logits(&assumed), logits(&open(&golden::path("qwen2"), None).expect("native")));
        assert!(assumed.warnings[0].contains("does not say its type"), "{:?}", assumed.warnings);
    }
}

#[test]
fn an_assumption_about_a_native_model_is_an_error_unless_it_is_correct() {
    let llama = golden::path("llama");
    assert!(open(&llama, Some("llama")).expect("it is one").warnings.is_empty());
    let (_, text, remedy) = refused(&llama, Some("mistral"));
    assert!(
        text.contains("`llama`") && text.contains("`mistral`") && remedy.contains("leave out `LoadOptions::assume`"),
        "{text}"
    );
    let (_, text, remedy) = refused(acme(|_| {}).path(), Some("lama"));
    assert!(text.contains("no native type `lama`") && remedy.contains("similar names are `llama`"), "{text} {remedy}");
}

#[test]
fn inspect_suggests_a_family_and_the_model_runs_only_if_it_is_assumed() {
    let dir = acme(|config| config["attention_multiplier"] = json!(0.5));
    for assume in [None, Some("llama")] {
        let report = inspect_as(dir.path(), assume).expect("a report");
        let support = if assume.is_some() { Support::Native } else { Support::InspectOnly };
        assert_eq!((report.support, report.runs()), (support, assume.is_some()));
        let value = serde_json::to_value(&report).expect("JSON");
        assert_eq!(value["assume"]["family"], "llama");
        assert_eq!(value["assume"]["unread"], json!(["attention_multiplier"]));
        let card = report.card();
        assert!(card.contains("runs as       llama, with `LoadOptions::assume`\n"), "{card}");
        let verdict = match assume {
            None => "It will not run by itself: `LoadOptions::assume` set to `llama` runs it",
            Some(_) => "It will run.",
        };
        assert!(card.lines().last().is_some_and(|last| last.starts_with(verdict)), "{card}");
    }
    let report = inspect_as(dir.path(), Some("qwen3")).expect("a report");
    assert!(report.assume.is_none() && report.problems[0].what.contains("does not fit `qwen3`"), "{report:#?}");
    assert!(inspect_as(dir.path(), Some("qwen33")).is_err());
    let report = inspect_as(&golden::path("llama"), Some("qwen3")).expect("a report");
    assert!(!report.runs() && report.problems[0].what.contains("is native"), "{report:#?}");
    // Neither a type nor a class.
    let dir = with_config("llama", |config| {
        config.as_object_mut().expect("an object").retain(|key, _| key != "model_type" && key != "architectures");
    });
    assert_eq!(inspect(dir.path()).expect("a report").assume.expect("a suggestion").family, "llama");
}

#[test]
fn every_golden_model_fits_its_own_family_under_another_name() {
    // Every family is tried on each.
    for name in golden::one_per_type() {
        let mut own = String::new();
        let dir = with_config(&name, |config| {
            own = config["model_type"].as_str().expect("a type").to_owned();
            config["model_type"] = json!("acme_llm");
        });
        // Its class is a speech recognizer, of which the decoder is only a part: no suggestion.
        if own == "whisper" {
            continue;
        }
        let suggestion =
            inspect(dir.path()).expect("a report").assume.unwrap_or_else(|| panic!("{name}: no suggestion"));
        assert!(suggestion.fitting.contains(&own), "{name}: {:?}", suggestion.fitting);
        assert_eq!(suggestion.family, suggestion.fitting[0], "{name}");
    }
}

#[test]
fn no_number_makes_the_reader_of_another_family_panic() {
    let mut panics = Vec::new();
    for name in ["llama", "mixtral", "gpt2", "gpt_neox", "bloom", "opt"] {
        let path = golden::path(name).join("config.json");
        let config: Value = serde_json::from_slice(&std::fs::read(path).expect("a config")).expect("JSON");
        let keys = config.as_object().expect("an object").iter().filter(|(_, old)| old.is_number());
        for (key, _) in keys {
            for new in [json!(0), json!(-1), json!(7), json!(1u64 << 60), json!(0.3), json!(1e30), json!({})] {
                let dir = with_config(name, |config| {
                    config["model_type"] = json!("acme_llm");
                    config[key] = new.clone();
                });
                let outcome = std::panic::catch_unwind(|| assert!(open(dir.path(), None).is_err()));
                if outcome.is_err() {
                    panics.push(format!("{name}: {key} = {new}"));
                }
            }
        }
    }
    assert!(panics.is_empty(), "{panics:#?}");
}

#[test]
fn an_assumed_model_agrees_with_the_reference() {
    // Control: the equal bits above also agree with transformers.
    let case = golden::case("llama");
    let assumed = open(acme(|_| {}).path(), Some("llama")).expect("it fits");
    let run = assumed
        .model
        .run(std::slice::from_ref(&case.ids), &Plan::capture(["logits"]), &RunOptions::default())
        .expect("a run");
    assert!(difference(run.captures[0].array.values(), &case.reference["logits"].1) < 1e-4);
}
