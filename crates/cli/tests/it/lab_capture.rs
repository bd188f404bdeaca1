//! `pellucid lab capture` on a tiny model: real processes, real captures. Times are not asserted.

use crate::golden_path;
use crate::lab::{json, lab, refused, stderr, stdout};
use serde_json::Value;
use std::path::PathBuf;

const SIZE: [&str; 6] = ["--batch", "3", "--prefill", "9", "--decode", "4"];

/// Runs `lab capture` on a golden model of this type.
fn capture(dir: &std::path::Path, args: &[&str]) -> std::process::Output {
    let model = golden_path("llama");
    let all: Vec<&str> = ["capture", "--model", &model].into_iter().chain(SIZE).chain(args.iter().copied()).collect();
    lab(dir, &all)
}

#[test]
fn one_mode_gives_one_file_with_counted_tokens_and_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--mode", "custom", "--layers", "1", "--iterations", "2", "--output", "c.json", "--profile-fetch"];
    let output = capture(dir.path(), &args);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", stderr(&output));
    let found = json(&dir.path().join("c.json"));
    assert_eq!(found["schema"], "pellucid/lab-capture-mode/v1");
    assert_eq!(
        (&found["mode"], &found["batch_size"], &found["num_captured_layers"]),
        (&"custom".into(), &3.into(), &1.into())
    );
    assert_eq!(found["capture_layers"], serde_json::json!([1]));
    assert_eq!(found["iterations"].as_array().map(Vec::len), Some(2));
    let requests = found["requests"].as_array().expect("requests");
    let counts =
        |request: &Value| ["prompt", "generated", "captured_positions", "reused"].map(|key| request[key].as_u64());
    assert!(requests.len() == 3 && requests.iter().all(|r| counts(r) == [Some(9), Some(4), Some(12), Some(0)]));
    assert_eq!(found["captured_bytes"]["observed"], found["captured_bytes"]["predicted"]);
    // The warm-up and both iterations, three requests, one layer.
    assert_eq!((&found["rows_checked"], &found["true_concurrency"]), (&9.into(), &3.into()));
    assert_eq!((&found["equals_forward_pass"], &found["prefix_cache"]), (&true.into(), &"off".into()));
    assert_eq!(found["problems"], serde_json::json!([]));
    assert!(found["iterations"][0]["fetch"]["file"].as_f64() > Some(0.0));
    // Mixed lengths: the same checks with other counts.
    let args = ["capture", "--mixed", "--mode", "all-layers", "--iterations", "1", "--batch", "3", "--prefill", "30"];
    let mixed: Value = serde_json::from_str(&stdout(&lab(dir.path(), &args))).expect("JSON");
    let prompts: Vec<Option<u64>> =
        mixed["requests"].as_array().expect("requests").iter().map(|r| r["prompt"].as_u64()).collect();
    assert!(
        prompts.iter().any(|prompt| *prompt != prompts[0]) && mixed["problems"] == serde_json::json!([]),
        "{mixed}"
    );
    assert_eq!(mixed["captured_bytes"]["observed"], mixed["captured_bytes"]["predicted"]);
    // Without --output the file goes to stdout.
    let baseline: Value =
        serde_json::from_str(&stdout(&capture(dir.path(), &["--mode", "baseline", "--iterations", "1"])))
            .expect("JSON");
    assert_eq!(baseline["output_digest"], found["output_digest"], "captures change no token");
    assert_eq!(baseline["captured_bytes"]["observed"], 0);
}

#[test]
fn a_suite_runs_every_mode_and_writes_a_folder() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = capture(dir.path(), &["--rounds", "2", "--iterations", "1", "--output", "reports"]);
    let page = stdout(&output);
    let folders: Vec<PathBuf> =
        std::fs::read_dir(dir.path().join("reports")).expect("a directory").flatten().map(|e| e.path()).collect();
    let [folder] = &folders[..] else { panic!("{folders:?}") };
    let name = folder.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(name.starts_with("isolated_20") && name.len() == "isolated_20260130_080000".len(), "{name}");
    let suite = json(&folder.join("suite.json"));
    let digests: Vec<&Value> =
        suite["modes"].as_array().expect("modes").iter().map(|mode| &mode["output_digest"]).collect();
    assert!(digests.len() == 6 && digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    assert_eq!((suite["order"].as_array().map(Vec::len), &suite["invalid"]), (Some(14), &serde_json::json!([])));
    for mode in ["baseline", "zero-layer", "noop-hook", "single", "half", "all-layers"] {
        assert_eq!(json(&folder.join(format!("{mode}.json")))["mode"], mode);
        assert!(page.contains(&format!("| {mode} |")), "{page}");
    }
    assert!(std::fs::read_to_string(folder.join("report.html")).expect("a page").contains("<svg"));
    assert_eq!(std::fs::read_to_string(folder.join("report.md")).expect("a page"), page);
    assert!(stderr(&output).contains("no peer row: give an interpreter"), "{}", stderr(&output));
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let cases: [(&[&str], &str, &str); 9] = [
        (&["--mode", "custom", "--layers", "0,99"], "no layer 99", "inspect"),
        (&["--mode", "custom", "--layers", "1,1"], "layer 1 is given twice", "--help"),
        (&["--mode", "custom"], "--mode custom has no layers", "--layers 0,5,10"),
        (&["--layers", "1"], "--layers is for the mode custom", "--mode custom"),
        (&["--mode", "half", "half"], "--mode half is given twice", "--rounds"),
        (&["--batch", "0"], "--batch is 0", "--help"),
        (&["--prefill", "1000000"], "the model's context has", "inspect"),
        (&["--mode", "single", "--output", "no/such/f.json"], "cannot write no/such/f.json", "directory"),
        (&["--mode", "single", "--gate"], "--gate needs a suite", "several modes"),
    ];
    let model = golden_path("llama");
    for (args, message, hint) in cases {
        // The model's context is short; the case of a prompt that is too long has its own length.
        let size: &[&str] = if args.contains(&"--prefill") { &[] } else { &["--prefill", "8", "--decode", "4"] };
        let all: Vec<&str> = ["capture", "--model", &model].iter().chain(size).chain(args).copied().collect();
        refused(&lab(dir.path(), &all), message, hint);
    }
    std::fs::write(dir.path().join("file"), "").expect("written");
    refused(&capture(dir.path(), &["--output", "file"]), "cannot create file/isolated_", "--output DIR");
}
