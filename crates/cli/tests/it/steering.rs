//! `pellucid steer`, and `--steer` of the commands that take a plan.

use crate::commands::{json, pellucid, refused, stdout};
use std::path::Path;

const PROMPT: &str = "One day, Lily went to the park.";

fn pairs() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/steering/mood.jsonl").to_string_lossy().into_owned()
}

/// A directory with `mood.safetensors` and `mood.gguf`.
fn extracted() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["mood.safetensors", "mood.gguf"] {
        stdout(&pellucid(&["steer", "extract", &pairs(), "--output", &in_dir(&dir, name)]));
    }
    dir
}

fn in_dir(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_string_lossy().into_owned()
}

#[test]
fn vectors_of_both_formats_steer_alike_and_scale_0_changes_nothing() {
    let dir = extracted();
    let text = |steer: &[&str]| {
        let mut args = vec!["generate", PROMPT, "--max-new", "24"];
        steer.iter().for_each(|value| args.extend(["--steer", value]));
        stdout(&pellucid(&args))
    };
    let (a, b) = (in_dir(&dir, "mood.safetensors"), in_dir(&dir, "mood.gguf"));
    let plain = text(&[]);
    assert_eq!(text(&[&format!("{a}@0")]), plain);
    let steered = text(&[&format!("{a}@2:2")]);
    assert_ne!(steered, plain);
    assert_eq!(text(&[&format!("{b}@2:2")]), steered);
    assert_eq!(text(&[&format!("{a}@1.5:2"), &format!("{b}@0.5:2")]), steered);
    assert_ne!(text(&[&format!("{a}@-2:2")]), steered);
}

#[test]
fn captures_of_the_flags_see_the_steered_activation() {
    let dir = extracted();
    let norm = |steer: &[&str]| {
        let out = in_dir(&dir, "out.safetensors");
        let mut args = vec!["run", PROMPT, "--capture", "layers.2.resid_post", "--positions", "last", "--out", &out];
        args.extend(steer);
        stdout(&pellucid(&args));
        std::fs::read(&out).expect("captures")
    };
    let file = format!("{}@1:2", in_dir(&dir, "mood.gguf"));
    assert_ne!(norm(&[]), norm(&["--steer", &file]));
}

#[test]
fn extract_reports_every_layer_and_show_compares_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mean, pca) = (in_dir(&dir, "mean.gguf"), in_dir(&dir, "pca.safetensors"));
    let report = json(&["steer", "extract", &pairs(), "--output", &mean, "--layers", "2-4", "--json"]);
    let layers: Vec<u64> =
        report["layers"].as_array().expect("layers").iter().map(|l| l["layer"].as_u64().unwrap()).collect();
    assert_eq!(layers, [2, 3, 4]);
    assert_eq!(report["info"]["pairs"], 24);
    assert!(
        report["layers"].as_array().unwrap().iter().all(|layer| layer["held_out_accuracy"].as_f64().unwrap() > 0.9)
    );
    let method = ["--method", "pca_center", "--layers", "3-5"];
    let table = stdout(&pellucid(&[&["steer", "extract", &pairs(), "-o", &pca], &method[..]].concat()));
    assert_eq!(table.lines().count(), 4, "{table}");

    let shown = json(&["steer", "show", &mean, &pca, "--json"]);
    assert_eq!(shown["info"]["method"], "mean");
    assert!(shown["layers"][0]["cosine"].is_null(), "the other file has no layer 2");
    assert!(shown["layers"][1]["cosine"].as_f64().unwrap() > 0.5, "the mean and the shared component are similar");
    assert!(stdout(&pellucid(&["steer", "show", &mean])).contains("layers 2-4 at resid_post"));
}

#[test]
fn bad_vectors_and_pairs_are_refused_by_name() {
    let dir = extracted();
    let file = in_dir(&dir, "mood.gguf");
    let steer =
        |value: &str, message: &str, hint: &str| refused(&["generate", PROMPT, "--steer", value], 2, message, hint);
    steer("absent.gguf", "absent.gguf", "");
    steer(&format!("{file}@x"), "the scale \"x\" is not a number", "FILE[@SCALE][:LAYERS]");
    steer(&format!("{file}:9-2"), "is not a list of layers", "FILE[@SCALE][:LAYERS]");
    steer(&format!("{file}:77"), "there is no direction for layer 77", "it has directions for layers");
    steer(&pairs(), "mood.jsonl", "");
    let narrow = crate::golden_path("llama");
    let args = ["run", "--model", &narrow, "--tokens", "1,2", "--steer", &file];
    refused(&args, 2, "`layers.1.resid_post` has 32", "extracted from this model");

    let broken = in_dir(&dir, "broken.jsonl");
    let good = "{\"positive\": \"a\", \"negative\": \"b\"}\n";
    let out = in_dir(&dir, "out.gguf");
    let extract = |text: &str, extra: &[&str], message: &str, hint: &str| {
        std::fs::write(&broken, text).expect("a file");
        refused(&[&["steer", "extract", &broken, "--output", &out], extra].concat(), 2, message, hint);
        assert!(!Path::new(&out).exists(), "nothing is written");
    };
    extract(&format!("{good}{{\"positive\": 1}}\n"), &[], "line 2: not a pair", "each line is");
    extract("", &[], "the file has no pairs", "one pair per line");
    extract(&format!("{good}{{\"positive\": \"\", \"negative\": \"b\"}}\n"), &[], "pair 2: the prompt is empty", "");
    extract(good, &["--layers", "99"], "there is no layer 99", "layers of this model");
    extract(good, &["--point", "nonsense"], "layers have no point `nonsense`", "pellucid sites");
    extract(good, &["--method", "pca_diff"], "all differences are equal", "several different pairs");
    extract(good, &["--layers", "0-2"], "no direction for layer 0", "safetensors");
    let text = in_dir(&dir, "out.txt");
    refused(&["steer", "extract", &pairs(), "--output", &text], 2, "saved as .safetensors or .gguf", "extensions");
}
