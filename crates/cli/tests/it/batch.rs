//! `pellucid generate --batch`: results, captures, bad lines, resumption and the schedule.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory with a batch file.
struct Batch(tempfile::TempDir);

impl Batch {
    fn new(lines: &[&str]) -> Batch {
        let batch = Batch(tempfile::tempdir().expect("a directory"));
        std::fs::write(batch.path("requests.jsonl"), lines.join("\n")).expect("written");
        batch
    }

    fn of(requests: impl IntoIterator<Item = Value>) -> Batch {
        let lines: Vec<String> = requests.into_iter().map(|request| request.to_string()).collect();
        Batch::new(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command, with results in `results.jsonl`.
    fn command(&self, flags: &[&str]) -> Command {
        let mut command = pellucid();
        command.current_dir(self.0.path()).args(["generate", "--batch", "requests.jsonl", "--output", "results.jsonl"]);
        command.args(flags);
        command
    }

    fn run(&self, flags: &[&str]) -> Output {
        self.command(flags).output().expect("the binary runs")
    }

    /// Runs the batch, which must end with this exit code, and returns stderr.
    fn ends(&self, flags: &[&str], code: i32) -> String {
        let output = self.run(flags);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    fn results(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("results.jsonl")).expect("results");
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
    }

    fn by_id(&self) -> BTreeMap<String, Value> {
        self.results()
            .into_iter()
            .map(|result| (result["id"].as_str().unwrap_or_default().to_owned(), result))
            .collect()
    }
}

fn pellucid() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
    command.env("NO_COLOR", "1");
    command
}

/// `pellucid generate --json` with these flags.
fn alone(directory: &Path, flags: &[&str]) -> Value {
    let output = pellucid().current_dir(directory).args(["generate", "--json"]).args(flags).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

const STEER: &str = r#"{"taps": [{"site": "layers.2.resid_post", "scale": 0.3}]}"#;

#[test]
fn every_request_gives_the_tokens_and_text_of_its_own_generate() {
    let cases: [(&str, Value, &[&str]); 6] = [
        ("greedy", json!({"prompt": "One day, Tom", "max_new": 12}), &["One day, Tom", "--max-new", "12"]),
        (
            "sampled",
            json!({"prompt": "Lily saw a", "max_new": 20, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01,
                   "repetition_penalty": 1.1, "seed": 7}),
            &[
                "Lily saw a",
                "--max-new",
                "20",
                "--temperature",
                "0.9",
                "--top-k",
                "40",
                "--top-p",
                "0.95",
                "--min-p",
                "0.01",
                "--repetition-penalty",
                "1.1",
                "--seed",
                "7",
            ],
        ),
        (
            "stopped",
            json!({"prompt": "Once upon a time", "max_new": 40, "stop": [" girl", "xyz"]}),
            &["Once upon a time", "--max-new", "40", "--stop", " girl", "--stop", "xyz"],
        ),
        (
            "steered",
            json!({"prompt": "The dog", "max_new": 10, "plan": serde_json::from_str::<Value>(STEER).expect("a plan")}),
            &["The dog", "--max-new", "10", "--plan", "steer.json"],
        ),
        (
            "planned",
            json!({"prompt": "The dog", "max_new": 10, "plan": "steer.json"}),
            &["The dog", "--max-new", "10", "--plan", "steer.json"],
        ),
        (
            "tokens",
            json!({"tokens": [5, 6, 7, 8], "max_new": 9, "ignore_eos": true, "prompt_lookup": 3}),
            &["--tokens", "5,6,7,8", "--max-new", "9", "--ignore-eos", "--prompt-lookup", "3"],
        ),
    ];
    let requests = cases.iter().map(|(id, request, _)| {
        let mut request = request.clone();
        request["id"] = json!(id);
        request
    });
    let batch = Batch::of(requests);
    std::fs::write(batch.path("steer.json"), STEER).expect("written");
    // A small pass splits prompts, and few rows make requests wait.
    batch.ends(&["--max-batch", "3", "--pass-tokens", "4"], 0);
    let results = batch.by_id();
    assert_eq!(results.len(), cases.len());
    for (id, _, flags) in cases {
        let (result, solo) = (&results[id], alone(batch.0.path(), flags));
        for key in ["tokens", "text", "finish_reason"] {
            assert_eq!(result[key], solo[key], "{id}: {key}");
        }
        assert_eq!(result["prompt_tokens"], json!(solo["prompt_tokens"].as_array().map(Vec::len)), "{id}");
        let time = |key: &str| result["timing"][key].as_f64().expect("seconds");
        assert!(0.0 <= time("queued_s") && time("queued_s") <= time("first_token_s"), "{id}: {result}");
        assert!(time("first_token_s") <= time("total_s"), "{id}: {result}");
    }
    assert_eq!(results["stopped"]["finish_reason"], "stop");
    assert_ne!(results["steered"]["tokens"], alone(batch.0.path(), &["The dog", "--max-new", "10"])["tokens"]);
}

#[test]
fn flags_are_the_defaults_of_lines() {
    let batch =
        Batch::new(&[r#"{"id": "a", "prompt": "The dog"}"#, r#"{"id": "b", "prompt": "The dog", "max_new": 2}"#]);
    batch.ends(&["--max-new", "5", "--temperature", "1", "--seed", "3"], 0);
    let solo = alone(batch.0.path(), &["The dog", "--max-new", "5", "--temperature", "1", "--seed", "3"]);
    let results = batch.by_id();
    assert_eq!(results["a"]["tokens"], solo["tokens"]);
    assert_eq!(results["b"]["tokens"].as_array().map(Vec::len), Some(2));
}

fn tensors(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    file.tensors().into_iter().map(|(name, t)| (name, (t.shape().to_vec(), t.data().to_vec()))).collect()
}

#[test]
fn captures_are_those_of_generate_in_one_file_per_request() {
    let capture = json!(["layers.{0,5}.resid_post", {"site": "layers.1.z", "positions": "last"},
                         {"site": "layers.2.mlp_out", "capture": {"reduce": "norm"}}]);
    let batch = Batch::of([
        json!({"id": "a/b", "prompt": "One day, Tom", "max_new": 6, "capture": capture}),
        json!({"id": "none", "prompt": "One day, Tom", "max_new": 2}),
    ]);
    batch.ends(&["--captures", "acts"], 0);
    let results = batch.by_id();
    assert_eq!(results["none"]["captures"], Value::Null);
    let prompt = results["a/b"]["prompt_tokens"].as_u64().expect("a count");
    let captures = &results["a/b"]["captures"];
    assert_eq!(captures["file"], "acts/a%2Fb.safetensors");
    let expected = json!([
        {"name": "layers.0.resid_post", "shape": [prompt + 5, 128]},
        {"name": "layers.5.resid_post", "shape": [prompt + 5, 128]},
        {"name": "layers.1.z", "shape": [1, 4, 32]},
        {"name": "layers.2.mlp_out", "shape": [prompt + 5]},
    ]);
    assert_eq!(captures["tensors"], expected);
    std::fs::write(
        batch.path("plan.json"),
        r#"{"taps": [{"site": "layers.{0,5}.resid_post", "capture": true},
            {"site": "layers.1.z", "positions": "last", "capture": true},
            {"site": "layers.2.mlp_out", "capture": {"reduce": "norm"}}]}"#,
    )
    .expect("written");
    alone(batch.0.path(), &["One day, Tom", "--max-new", "6", "--plan", "plan.json", "--out", "alone.safetensors"]);
    assert!(tensors(&batch.path("acts/a%2Fb.safetensors")) == tensors(&batch.path("alone.safetensors")));
}

#[test]
fn bad_lines_are_named_and_the_others_run() {
    let batch = Batch::new(&[
        r#"{"id": "good", "prompt": "The dog", "max_new": 2}"#,
        r#"{"id": "torn", "prompt": "#,
        "",
        r#"{"id": "good", "prompt": "again"}"#,
        r#"{"id": "key", "promt": "x"}"#,
        r#"{"id": "none"}"#,
        r#"{"id": "both", "prompt": "x", "tokens": [1]}"#,
        r#"{"id": "site", "prompt": "x", "capture": ["layers.99.resid_post"]}"#,
        r#"{"id": "edit", "prompt": "x", "capture": [{"site": "layers.0.z", "zero": true, "capture": true}]}"#,
        r#"{"id": "plan", "prompt": "x", "plan": "missing.json"}"#,
        r#"{"id": "long", "prompt": "x", "max_new": 100000}"#,
        r#"{"id": "vocab", "tokens": [999999]}"#,
        r#"{"id": "zero", "prompt": "x", "max_new": 0}"#,
        r#"{"id": "cold", "prompt": "x", "temperature": -1}"#,
        r#"{"id": "stop", "prompt": "x", "stop": [""]}"#,
        r#"{"id": "chat", "messages": [{"role": "user", "content": "hi"}]}"#,
        r#"{"prompt": "The dog", "max_new": 2}"#,
    ]);
    let stderr = batch.ends(&["--captures", "acts"], 1);
    assert!(stderr.contains("14 requests failed"), "{stderr}");
    let results = batch.results();
    assert_eq!(results.len(), 16, "one result for each line that is not empty");
    let of_line = |line: u64| results.iter().find(|result| result["line"] == line).expect("a result");
    let error = |line: u64| of_line(line)["error"].as_str().unwrap_or_default().to_owned();
    let expected = [
        (2, "column 25"),
        (4, "line 1 has it"),
        (5, "`promt`"),
        (6, "no prompt"),
        (7, "more than one"),
        (8, "layers.99"),
        (9, "capture"),
        (10, "missing.json"),
        (11, "positions"),
        (12, "999999"),
        (13, "max_new is 0"),
        (14, "temperature"),
        (15, "stop string is empty"),
        (16, "chat template"),
    ];
    for (line, text) in expected {
        assert!(error(line).contains(text), "line {line}: {}", of_line(line));
    }
    assert_eq!((&of_line(2)["id"], &of_line(4)["id"], &of_line(5)["id"]), (&Value::Null, &Value::Null, &json!("key")));
    assert_eq!(of_line(1)["tokens"].as_array().map(Vec::len), Some(2));
    assert_eq!(of_line(17)["id"], 17, "the id of a line without one is its number");
}

#[test]
fn requests_beyond_the_memory_limit_are_refused_with_the_bytes() {
    let batch = Batch::new(&[
        r#"{"id": "small", "prompt": "The dog", "max_new": 2}"#,
        r#"{"id": "large", "prompt": "The dog", "max_new": 200}"#,
    ]);
    batch.ends(&["--kv-bytes", "100K"], 1);
    let results = batch.by_id();
    assert!(results["small"]["error"].is_null());
    let error = results["large"]["error"].as_str().expect("an error");
    assert!(error.contains("bytes for KV caches, and the scheduler has 102400"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_refused_before_work_starts() {
    let batch = Batch::new(&[r#"{"id": "a", "prompt": "The dog", "max_new": 2}"#]);
    std::fs::write(batch.path("notes.txt"), "my notes").expect("written");
    let refused = |flags: &[&str], text: &str| {
        let output = pellucid().current_dir(batch.0.path()).arg("generate").args(flags).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {stderr}");
        assert!(stderr.contains(text), "{flags:?}: {stderr}");
    };
    let requests = ["--batch", "requests.jsonl"];
    let with = |more: [&'static str; 2]| [requests, more].concat();
    refused(&["--batch", "missing.jsonl"], "missing.jsonl");
    refused(&with(["--output", "no/such/directory.jsonl"]), "cannot write no/such/directory.jsonl");
    refused(&with(["--output", "requests.jsonl"]), "--output is the file of --batch");
    refused(&with(["--output", "notes.txt"]), "notes.txt, line 1 is not a result");
    refused(&with(["--captures", "notes.txt"]), "notes.txt");
    refused(&with(["--trace", "schedule.png"]), "F.html or F.json");
    refused(&with(["--trace", "no/such.html"]), "no such directory");
    refused(&with(["--capture", "embed"]), "--captures DIR");
    refused(&with(["--kv-bytes", "lots"]), "512M");
    refused(&with(["--out", "x.safetensors"]), "cannot be used with");
    refused(&["Hello", "--output", "x.jsonl"], "--output belongs to --batch");
    refused(&["Hello", "--max-batch", "4"], "--max-batch belongs to --batch");
    let text = |name: &str| std::fs::read_to_string(batch.path(name)).expect("the file");
    assert_eq!(text("notes.txt"), "my notes");
    assert!(text("requests.jsonl").contains("The dog"), "no file was cut");
}

#[test]
fn a_second_run_skips_finished_ids_and_repairs_an_incomplete_line() {
    let request = |id: usize| json!({"id": format!("r{id}"), "prompt": "The dog", "max_new": 3, "seed": id});
    let batch = Batch::of((0..5).map(request));
    batch.ends(&[], 0);
    let first = std::fs::read_to_string(batch.path("results.jsonl")).expect("results");
    assert_eq!(first.lines().count(), 5);
    // As a killed process leaves it: three whole lines and the start of another.
    let lines: Vec<&str> = first.split_inclusive('\n').collect();
    let torn = format!("{}{}", lines[..3].concat(), &lines[3][..20]);
    std::fs::write(batch.path("results.jsonl"), &torn).expect("written");
    let stderr = batch.ends(&[], 0);
    assert!(
        stderr.contains("incomplete last line") && stderr.contains("2 done, 0 failed, 3 finished earlier"),
        "{stderr}"
    );
    let text = std::fs::read_to_string(batch.path("results.jsonl")).expect("results");
    assert!(text.starts_with(&lines[..3].concat()), "finished results stay as they were");
    assert_eq!(batch.by_id().len(), 5);
    assert_eq!(batch.results().len(), 5, "no id twice");
    let stderr = batch.ends(&[], 0);
    assert!(stderr.contains("0 done, 0 failed, 5 finished earlier"), "{stderr}");
}

#[test]
fn failed_requests_are_tried_again() {
    let batch = Batch::new(&[r#"{"id": "a", "prompt": "The dog", "max_new": 2, "plan": "plan.json"}"#]);
    batch.ends(&[], 1);
    std::fs::write(batch.path("plan.json"), STEER).expect("written");
    batch.ends(&[], 0);
    assert_eq!(batch.results().len(), 2);
    assert!(batch.by_id()["a"]["error"].is_null(), "the last result of an id counts");
}

#[cfg(unix)]
#[test]
fn an_interrupt_keeps_finished_results_and_the_next_run_continues() {
    let request = |id: usize| json!({"id": format!("r{id}"), "prompt": "The dog", "max_new": 200, "ignore_eos": true});
    let batch = Batch::of((0..400).map(request));
    let child =
        batch.command(&["--max-batch", "2", "--threads", "1"]).stderr(Stdio::piped()).spawn().expect("it starts");
    // Some results exist, most do not.
    let deadline = Instant::now() + Duration::from_secs(120);
    let lines = || std::fs::read_to_string(batch.path("results.jsonl")).unwrap_or_default().lines().count();
    while lines() < 2 {
        assert!(Instant::now() < deadline, "no results");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(killed.success());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("cancelled") && stderr.contains("run the command again"), "{stderr}");
    let finished = batch.results().len();
    assert!((2..400).contains(&finished));
    // The rest as short requests, so that the second run is quick.
    let short = |id: usize| json!({"id": format!("r{id}"), "prompt": "The dog", "max_new": 1}).to_string();
    std::fs::write(batch.path("requests.jsonl"), (0..400).map(short).collect::<Vec<_>>().join("\n")).expect("written");
    let stderr = batch.ends(&[], 0);
    assert!(stderr.contains(&format!("{finished} finished earlier")), "{stderr}");
    assert_eq!((batch.results().len(), batch.by_id().len()), (400, 400));
}

#[test]
fn the_schedule_is_a_page_or_a_chrome_trace() {
    let request = |id: usize| json!({"id": format!("<r{id}>"), "prompt": "The dog", "max_new": 1 + id % 7});
    let batch = Batch::of((0..100).map(request));
    batch.ends(&["--trace", "schedule.html"], 0);
    let page = std::fs::read_to_string(batch.path("schedule.html")).expect("a page");
    assert!(page.contains("&lt;r7&gt;: ") && !page.contains("<r7>"), "labels are escaped");
    assert!(page.contains("share a lane") && page.contains("prefers-color-scheme"));
    assert!(!page.contains("http"), "the page loads nothing");
    std::fs::remove_file(batch.path("results.jsonl")).expect("removed");
    batch.ends(&["--trace", "schedule.json"], 0);
    let trace: Value =
        serde_json::from_slice(&std::fs::read(batch.path("schedule.json")).expect("a trace")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let tokens = |category: &str| -> u64 {
        let of = events.iter().filter(|event| event["cat"] == category);
        of.map(|event| event["args"]["tokens"].as_u64().expect("a count")).sum()
    };
    let results = batch.results();
    let count = |of: &dyn Fn(&Value) -> u64| results.iter().map(of).sum::<u64>();
    // The last token of a request is not fed back; shared prefixes of prompts are computed once.
    let fed_back = count(&|result| result["tokens"].as_array().map_or(0, |tokens| tokens.len() as u64 - 1));
    assert_eq!(tokens("decode"), fed_back);
    assert!((1..=count(&|result| result["prompt_tokens"].as_u64().unwrap_or(0))).contains(&tokens("prompt")));
}

#[test]
fn without_an_output_file_results_go_to_stdout() {
    let batch = Batch::new(&[r#"{"id": "a", "prompt": "The dog", "max_new": 2}"#]);
    let output = pellucid().current_dir(batch.0.path()).args(["generate", "--batch", "requests.jsonl"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["id"], "a");
}
