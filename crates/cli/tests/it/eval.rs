//! `pellucid eval`.

use crate::commands::{json, refused};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).to_string_lossy().into_owned()
}

/// A file with this content in a temporary directory.
fn file(dir: &tempfile::TempDir, name: &str, content: &str) -> String {
    let path: PathBuf = dir.path().join(name);
    std::fs::write(&path, content).expect("written");
    path.to_string_lossy().into_owned()
}

fn variants(result: &Value) -> &Vec<Value> {
    result["tasks"][0]["variants"].as_array().expect("variants")
}

#[test]
fn a_task_file_of_lm_eval_gives_the_scores_of_its_items_as_jsonl() {
    let plain = json(&["eval", &example("eval/choices.jsonl"), "--json"]);
    let yaml = json(&["eval", &example("eval/task.yaml"), "--json"]);
    assert_eq!(variants(&plain)[0]["scores"], variants(&yaml)[0]["scores"]);
    assert_eq!(variants(&plain)[0]["metrics"], variants(&yaml)[0]["metrics"]);
    assert_eq!(
        (yaml["tasks"][0]["task"].as_str(), yaml["tasks"][0]["items"].as_u64()),
        (Some("little_choices"), Some(8))
    );
}

#[test]
fn a_log_likelihood_is_that_of_the_logits() {
    let dir = tempfile::tempdir().expect("a directory");
    let task = file(&dir, "t.jsonl", "{\"prompt\": \"Tom saw a dog.\", \"target\": \"The\"}\n");
    let result = json(&["eval", &task, "--json"]);
    let score = &variants(&result)[0]["scores"][0][0];
    let next = json(&["run", "Tom saw a dog.", "--json"]);
    let next = next["rows"][0]["next"].as_array().expect("next tokens");
    let the = next.iter().find(|token| token["token"] == " The").expect("a likely token");
    let probability = the["probability"].as_f64().expect("a number");
    assert!((score["log_likelihood"].as_f64().expect("a number").exp() - probability).abs() < 1e-5, "{score}");
    assert_eq!(score["tokens"], 1);
}

#[test]
fn texts_in_windows_batches_and_plans_have_consistent_scores() {
    let dir = tempfile::tempdir().expect("a directory");
    let texts: Vec<String> =
        (1..6).map(|n| format!("{}\n", "Tom saw a dog. The dog was big. ".repeat(n).trim_end())).collect();
    let together = file(&dir, "all.txt", &texts.join("\n"));
    let all = json(&["eval", &together, "--json"]);
    for (index, text) in texts.iter().enumerate() {
        let alone = json(&["eval", &file(&dir, "one.txt", text), "--json"]);
        assert_eq!(variants(&alone)[0]["scores"][0], variants(&all)[0]["scores"][index]);
    }
    // A text longer than the context of the built-in model is scored in windows.
    let long = json(&["eval", &file(&dir, "long.txt", &"Tom saw a dog. ".repeat(400)), "--json"]);
    assert!(variants(&long)[0]["scores"][0][0]["tokens"].as_u64() > Some(1500), "{}", variants(&long)[0]["scores"]);
    let plan = example("plans/zero.json");
    let compared = json(&["eval", &together, "--plan", &plan, "--json"]);
    let [clean, zero] = variants(&compared).as_slice() else { panic!("two variants") };
    assert_eq!(clean["scores"], variants(&all)[0]["scores"]);
    assert_eq!(zero["name"], "zero");
    let value = |variant: &Value, list: &str| variant[list][0]["value"].as_f64().expect("a number");
    assert!((value(zero, "metrics") - value(clean, "metrics") - value(zero, "changes")).abs() < 1e-9);
    assert_ne!(value(zero, "changes"), 0.0);
}

#[test]
fn bad_tasks_are_refused_before_the_model_is_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = |name: &str, more: &str| {
        let base = std::fs::read_to_string(example("eval/task.yaml")).expect("a task");
        file(&dir, name, &(base.replace("choices.jsonl", &example("eval/choices.jsonl")) + more))
    };
    for (task, problem) in [
        (file(&dir, "empty.jsonl", ""), "has no item"),
        (
            file(&dir, "a.jsonl", "{\"prompt\": \"x\", \"choices\": [\"a\", \"b\"], \"answer\": 2}\n"),
            "line 1: `answer`",
        ),
        (file(&dir, "b.jsonl", "{\"text\": \"x\"}\n{\"good\": \"a\", \"bad\": \"b\"}\n"), "line 2: another kind"),
        (file(&dir, "c.jsonl", "{\"text\": \"x\"}\n{\"tex\n"), "line 2"),
        (yaml("few.yaml", "num_fewshot: 9\n"), "`num_fewshot` is 9, but there are 8 examples"),
        (yaml("split.yaml", "num_fewshot: 1\nfewshot_split: train\n"), "no split `train`"),
        (yaml("sampler.yaml", "fewshot_config:\n  sampler: balanced\n"), "`balanced`"),
        (yaml("code.yaml", "process_docs: !function utils.process\n"), "unknown field `process_docs`"),
        ("nosuch.jsonl".into(), "nosuch.jsonl"),
    ] {
        refused(&["eval", &task], 2, problem, "");
    }
    let rows = file(&dir, "rows.json", "{\"taps\": [{\"site\": \"layers.0.z\", \"rows\": [0], \"zero\": true}]}");
    refused(&["eval", &example("eval/pairs.jsonl"), "--plan", &rows], 2, "selects `rows`", "leave out");
    refused(&["eval", &example("eval/pairs.jsonl"), "--limit", "0"], 2, "0 is not in 1..", "");
}

/// The scores of the first item of the first variant.
fn first_item(args: &[&str]) -> Value {
    variants(&json(&[&["eval"], args, &["--json"]].concat()))[0]["scores"][0].clone()
}

#[test]
fn examples_are_put_before_the_prompt() {
    let dir = tempfile::tempdir().expect("a directory");
    let items = "{\"prompt\": \"One\", \"target\": \"dog\"}\n{\"prompt\": \"Two\", \"target\": \"cats\"}\n";
    let task = file(&dir, "targets.jsonl", items);
    let with_example = file(&dir, "long.jsonl", "{\"prompt\": \"Two cats\\n\\nOne\", \"target\": \"dog\"}\n");
    let expected = first_item(&[&with_example]);
    // The other item of the task, a file of examples, and a task file of lm-eval.
    assert_eq!(first_item(&[&task, "--num-fewshot", "1"]), expected);
    assert_ne!(first_item(&[&task]), expected);
    let examples = file(&dir, "examples.jsonl", "{\"prompt\": \"Two\", \"target\": \"cats\"}\n");
    assert_eq!(first_item(&[&task, "--num-fewshot", "1", "--fewshot-file", &examples]), expected);
    let yaml = "task: t\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: targets.jsonl\n    train: \
                examples.jsonl\ntest_split: test\nfewshot_split: train\noutput_type: loglikelihood\ndoc_to_text: \
                prompt\ndoc_to_target: target\nnum_fewshot: 1\n";
    let path = file(&dir, "t.yaml", yaml);
    assert_eq!(first_item(&[&path]), expected);
    assert_eq!(first_item(&[&path, "--num-fewshot", "0"]), first_item(&[&task]));
    // Other delimiters, and the first examples instead of random ones.
    let other = file(
        &dir,
        "other.yaml",
        &(yaml.to_string()
            + "fewshot_delimiter: \" | \"\nfewshot_config:\n  sampler: first_n\n  target_delimiter: \"=\"\n"),
    );
    let written = file(&dir, "written.jsonl", "{\"prompt\": \"Two=cats | One\", \"target\": \"dog\"}\n");
    assert_eq!(first_item(&[&other]), first_item(&[&written]));
    let result = json(&["eval", &path, "--json"]);
    assert_eq!(result["tasks"][0]["num_fewshot"], 1);
    refused(&["eval", &example("eval/pairs.jsonl"), "--num-fewshot", "1"], 2, "its items have no prompt", "");
}
