//! Sparse autoencoders on the command line: `pellucid sae`, `--sae`, and the `saes` of a plan.

use crate::commands::{json, pellucid, refused, stdout};
use serde_json::Value;
use std::path::Path;

const PROMPT: &str = "Tom saw a dog.";

fn feature_plan() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/saes/feature.json").to_string_lossy().into_owned()
}

/// The record of the built-in SAE in a result.
fn record(result: &Value) -> &Value {
    let [record] = result["saes"].as_array().expect("a list").as_slice() else { panic!("not one SAE: {result}") };
    assert_eq!((&record["path"], &record["site"]), (&"builtin".into(), &"layers.3.resid_post".into()));
    record
}

#[test]
fn every_result_records_the_attached_saes_and_their_test() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").to_string_lossy().into_owned();
    for args in [
        &["run", PROMPT, "--sae", "builtin", "--json"][..],
        &["run", PROMPT, "--plan", &feature_plan(), "--json"],
        &["generate", PROMPT, "--max-new", "2", "--sae", "builtin", "--splice", "--json"],
        &["lens", PROMPT, "--sae", "builtin", "--splice", "--json"],
        &["sae", "features", PROMPT, "--json"],
        &["sae", "top", "531", "--corpus", &corpus, "--json"],
        &["sae", "eval", "--corpus", &corpus, "--limit", "2", "--json"],
    ] {
        let result = json(args);
        let check = &record(&result)["check"];
        assert!(check["explained_variance"].as_f64().expect("a number") > 0.7, "{args:?}");
    }
    assert!(json(&["run", PROMPT, "--json"]).get("saes").is_none());
    let unchecked = json(&["run", PROMPT, "--sae", "builtin", "--unchecked", "--json"]);
    assert!(record(&unchecked)["check"].is_null());
}

#[test]
fn captures_are_written_with_the_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("acts.safetensors");
    let site = "layers.3.resid_post/sae.acts";
    stdout(&pellucid(&["run", PROMPT, "--sae", "builtin", "--capture", site, "--out", &out.to_string_lossy()]));
    let bytes = std::fs::read(out).expect("captures");
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).expect("a header");
    let saes = header.metadata().as_ref().and_then(|metadata| metadata.get("saes")).expect("a record").clone();
    let saes: Value = serde_json::from_str(&saes).expect("JSON");
    assert_eq!(saes[0]["features"], 2048);
}

#[test]
fn a_plan_attaches_its_saes() {
    let text = |args: &[&str]| stdout(&pellucid(&[&["generate", "Tom saw a", "--max-new", "8"], args].concat()));
    let (plan, plain) = (feature_plan(), text(&[]));
    let steered = text(&["--plan", &plan]);
    assert_ne!(steered, plain);
    // Attached by the flag and by the plan: once.
    assert_eq!(text(&["--plan", &plan, "--sae", "builtin"]), steered);
}

#[test]
fn splices_apply_to_every_request_of_a_batch() {
    let dir = tempfile::tempdir().expect("a directory");
    let batch = dir.path().join("batch.jsonl");
    std::fs::write(&batch, "{\"id\": 1, \"prompt\": \"Tom saw a\", \"max_new\": 8}\n").expect("written");
    let batch = batch.to_string_lossy();
    let tokens = |args: &[&str]| {
        let all = [&["generate", "--batch", &*batch], args].concat();
        serde_json::from_str::<Value>(&stdout(&pellucid(&all))).expect("a result")["tokens"].clone()
    };
    let alone = json(&["generate", "Tom saw a", "--max-new", "8", "--sae", "builtin", "--splice", "--json"]);
    assert_eq!(tokens(&["--sae", "builtin", "--splice"]), alone["tokens"]);
    assert_ne!(tokens(&[]), alone["tokens"]);
}

#[test]
fn the_plan_of_a_request_cannot_attach() {
    let dir = tempfile::tempdir().expect("a directory");
    let batch = dir.path().join("batch.jsonl");
    let plan = std::fs::read_to_string(feature_plan()).expect("a plan").replace('\n', " ");
    std::fs::write(&batch, format!("{{\"id\": 1, \"prompt\": \"Tom saw a\", \"max_new\": 2, \"plan\": {plan}}}\n"))
        .expect("written");
    let output = pellucid(&["generate", "--batch", &batch.to_string_lossy()]);
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
    assert!(result["error"].as_str().expect("an error").contains("the plan needs the SAE \"builtin\""), "{result}");
    assert!(result["hint"].as_str().expect("a hint").contains("--sae"), "{result}");
}

#[test]
fn impossible_arguments_are_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").to_string_lossy().into_owned();
    for args in [
        &["sae", "eval", "--corpus", &corpus, "--limit", "0"][..],
        &["sae", "eval", "--corpus", &corpus, "--context", "0"],
        &["sae", "top", "1", "--corpus", &corpus, "--count", "0"],
        &["sae", "features", PROMPT, "--top", "0"],
    ] {
        refused(args, 2, "0 is not in 1..", "");
    }
    let missing = "nosuch: no such file or directory";
    refused(&["run", PROMPT, "--sae", "nosuch@layers.1.resid_post"], 2, missing, "`builtin`");
}
