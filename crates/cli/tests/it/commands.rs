//! Outputs, files and exit codes of the real binary.

use crate::golden_path as golden;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

pub fn pellucid(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pellucid")).args(args).env("NO_COLOR", "1").output().expect("the binary runs")
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&pellucid(args))).expect("one JSON object")
}

/// Checks that the command fails with this code and both texts on stderr, and prints nothing to
/// stdout.
pub fn refused(args: &[&str], code: i32, message: &str, hint: &str) {
    let output = pellucid(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains(message) && stderr.contains(hint), "{args:?} stderr: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    assert!(!stderr.contains("panicked"), "{args:?} panicked");
}

fn tensors(path: &Path) -> Vec<(String, Vec<usize>)> {
    let bytes = std::fs::read(path).expect("the file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut list: Vec<_> = file.tensors().into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
    list.sort();
    list
}

#[test]
fn run_shows_the_top_next_tokens() {
    let text = stdout(&pellucid(&["run", "Once upon a"]));
    assert!(text.lines().next().is_some_and(|line| line.contains("\" time\"")), "{text}");
    assert_eq!(text.lines().count(), 5);
}

#[test]
fn run_json_has_rows_and_timing() {
    let answer = json(&["run", "Once upon a", "--tokens", "5,6", "--json"]);
    assert_eq!(answer["rows"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer["rows"][1]["tokens"], serde_json::json!([5, 6]));
    assert_eq!(answer["rows"][0]["next"][0]["token"], " time");
    assert!(answer["timing"]["load_s"].is_number() && answer["timing"]["run_s"].is_number());
}

#[test]
fn captures_are_written_by_site_and_prefixed_by_row_for_several_inputs() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("one.safetensors");
    let path = out.to_str().expect("a path");
    stdout(&pellucid(&[
        "run",
        "--tokens",
        "5,6,7",
        "--capture",
        "layers.{0,5}.resid_post",
        "--capture",
        "layers.2.attn_probs",
        "--capture",
        "layers.1.q",
        "--out",
        path,
    ]));
    let shapes = [
        ("layers.0.resid_post", vec![3, 128]),
        ("layers.1.q", vec![3, 4, 32]),
        ("layers.2.attn_probs", vec![4, 3, 3]),
        ("layers.5.resid_post", vec![3, 128]),
    ];
    assert_eq!(tensors(&out), shapes.map(|(name, shape)| (name.to_string(), shape)));

    stdout(&pellucid(&[
        "run",
        "--tokens",
        "5,6,7",
        "--tokens",
        "8",
        "--capture",
        "logits",
        "--positions",
        "last",
        "--out",
        path,
    ]));
    assert_eq!(tensors(&out), [("0/logits".to_string(), vec![1, 2048]), ("1/logits".to_string(), vec![1, 2048])]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("the directory").count(), 1, "no temporary file is left");
}

#[test]
fn generate_streams_text_and_its_json_has_the_stable_keys() {
    let text = stdout(&pellucid(&["generate", "Once upon a time", "--max-new", "12"]));
    assert!(text.starts_with(", there was"), "{text}");
    let answer = json(&["generate", "Once upon a time", "--max-new", "12", "--json"]);
    assert_eq!(format!("{}\n", answer["text"].as_str().expect("text")), text);
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(12));
    assert_eq!(answer["finish_reason"], "length");
    for key in ["load_s", "prefill_s", "decode_s"] {
        assert!(answer["timing"][key].is_number(), "{key}");
    }
    let stopped = json(&["generate", "Once upon a time", "--max-new", "40", "--stop", " girl", "--json"]);
    assert_eq!(
        (stopped["finish_reason"].as_str(), stopped["text"].as_str().map(|t| t.contains("girl"))),
        (Some("stop"), Some(false))
    );
    assert!(
        !stdout(&pellucid(&["generate", "Once upon a time", "--max-new", "40", "--stop", " girl"])).contains("girl")
    );
}

#[test]
fn sampling_repeats_with_its_seed() {
    let sample = |seed: &str| {
        json(&["generate", "One day", "--max-new", "20", "--temperature", "1", "--seed", seed, "--json"])["tokens"]
            .clone()
    };
    assert_eq!(sample("1"), sample("1"));
    assert_ne!(sample("1"), sample("2"));
}

#[test]
fn generate_captures_prompt_plus_generated_minus_one_positions() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("steps.safetensors");
    stdout(&pellucid(&[
        "generate",
        "--tokens",
        "5,6,7",
        "--max-new",
        "4",
        "--ignore-eos",
        "--capture",
        "layers.3.resid_post",
        "--capture",
        "layers.0.attn_probs",
        "--out",
        out.to_str().expect("a path"),
    ]));
    assert_eq!(
        tensors(&out),
        [("layers.0.attn_probs".to_string(), vec![4, 6, 6]), ("layers.3.resid_post".to_string(), vec![6, 128])]
    );
}

#[test]
fn a_plan_changes_the_generation_and_an_invalid_one_is_explained() {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_string_lossy().into_owned()
    };
    let plain = stdout(&pellucid(&["generate", "Once upon a time", "--max-new", "12"]));
    let zero = write("zero.json", r#"{"taps": [{"site": "layers.*.mlp_out", "zero": true}]}"#);
    assert_ne!(stdout(&pellucid(&["generate", "Once upon a time", "--max-new", "12", "--plan", &zero])), plain);
    let typo = write("typo.json", r#"{"taps": [{"site": "layers.0.z", "zreo": true}]}"#);
    refused(&["run", "hi", "--plan", &typo], 2, "unknown key `zreo`", "docs/plans.md");
    let file = write("file.json", r#"{"taps": [{"site": "layers.0.resid_post", "add": "none.safetensors#v"}]}"#);
    refused(&["run", "hi", "--plan", &file], 2, "none.safetensors", "");
}

#[test]
fn lens_draws_a_table_and_a_page() {
    let text = stdout(&pellucid(&["lens", "Once upon a"]));
    assert!(text.contains("answer") && text.contains("·time") && !text.contains('\u{1b}'), "{text}");
    let dir = tempfile::tempdir().expect("a directory");
    let page = dir.path().join("lens.html");
    assert!(stdout(&pellucid(&["lens", "Once upon a", "--html", page.to_str().expect("a path")])).is_empty());
    let page = std::fs::read_to_string(&page).expect("the page");
    assert!(page.starts_with("<!doctype html>") && page.contains("prompt_tokens"), "a whole page with its data");
    assert_eq!(json(&["lens", "Once upon a", "--json"])["rows"].as_array().map(Vec::len), Some(7));
}

#[test]
fn profile_reports_the_time_of_every_op() {
    let dir = tempfile::tempdir().expect("a directory");
    let (trace, flame) = (dir.path().join("t.json"), dir.path().join("f.svg"));
    let (trace_name, flame_name) = (trace.to_string_lossy(), flame.to_string_lossy());
    let found = json(&[
        "profile",
        "Tom saw a dog. The",
        "--max-new",
        "3",
        "--json",
        "--trace",
        &trace_name,
        "--flame",
        &flame_name,
    ]);
    let lines = found["lines"].as_array().expect("lines");
    let shares: f64 = lines.iter().map(|line| line[1]["share"].as_f64().expect("a share")).sum();
    assert!((shares - 1.0).abs() < 1e-6 && found["seconds"].as_f64().is_some_and(|s| s > 0.0), "{found}");
    assert!(lines.iter().any(|line| line[0] == "matmul" && line[1]["gflops_per_s"].as_f64().is_some_and(|x| x > 0.0)));
    assert!(found["pairs"] == 0 && found["overhead"].is_null() && found["overhead_interval"].is_null(), "{found}");
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).expect("a trace")).expect("JSON");
    let calls: u64 = lines.iter().map(|line| line[1]["calls"].as_u64().expect("a count")).sum();
    assert_eq!(trace["traceEvents"].as_array().map(Vec::len), Some(calls as usize), "every op of the profiled run");
    let flame = std::fs::read_to_string(flame).expect("a flame graph");
    assert!(flame.contains("<svg") && flame.contains("mlp.down") && flame.contains("prompt") && flame.contains("step"));
    assert!(stdout(&pellucid(&["profile", "Tom", "--by", "layer"])).contains("layers.  5"));
    // The overhead is measured only on request.
    let found = json(&["profile", "Tom", "--json", "--pairs", "6"]);
    let ends: Vec<f64> =
        found["overhead_interval"].as_array().expect("two ends").iter().filter_map(Value::as_f64).collect();
    let overhead = found["overhead"].as_f64().expect("a share");
    assert!(ends[0] <= overhead && overhead <= ends[1] && found["pairs"] == 6, "{found}");
    refused(&["profile", "Tom", "--pairs", "1"], 2, "", "");
    refused(&["profile"], 2, "", "");
}

#[test]
fn sites_lists_every_site_with_shape_and_aliases() {
    let text = stdout(&pellucid(&["sites"]));
    assert!(
        text.lines().any(|line| line.starts_with("layers.0-5.resid_post") && line.contains("[tokens, 128]")),
        "{text}"
    );
    let list = json(&["sites", "--model", &golden("gpt2"), "--json"]);
    let sites = list["sites"].as_array().expect("sites");
    let site = sites.iter().find(|site| site["site"] == "layers.1.resid_post").expect("a site");
    assert_eq!(site["aliases"], serde_json::json!(["blocks.1.hook_resid_post", "transformer.h.1.output"]));
}

#[test]
fn a_model_without_a_tokenizer_runs_on_token_ids() {
    let answer = json(&["generate", "--model", &golden("llama"), "--tokens", "5,6,7", "--max-new", "3", "--json"]);
    assert!(answer["text"].is_null() && answer["tokens"].as_array().is_some_and(|t| !t.is_empty()));
    refused(&["run", "--model", &golden("llama"), "hello"], 2, "came without a tokenizer", "--tokens");
}

#[test]
fn an_adapter_changes_the_answer_and_finds_its_base() {
    let part = |name: &str| golden::quantized(&format!("lora/{name}")).to_string_lossy().into_owned();
    let next = |args: &[&str]| {
        let answer = json(&[&["run", "--tokens", "5,17,40", "--json"], args].concat());
        answer["rows"][0]["next"].clone()
    };
    let (base, adapter) = (part("base"), part("adapter"));
    let both = next(&["--model", &base, "--adapter", &adapter]);
    assert_ne!(both, next(&["--model", &base]));
    assert_eq!(both, next(&["--model", &part("merged")]));
    assert_eq!(both, next(&["--model", &adapter]));
    let sites = ["sites", "--json", "--model"];
    assert_eq!(json(&[&sites[..], &[&adapter]].concat())["sites"], json(&[&sites[..], &[&base]].concat())["sites"]);
    refused(&["run", "--tokens", "5", "--adapter", &base], 2, "there is no adapter_config.json here", "PEFT");
    refused(
        &["run", "--tokens", "5", "--adapter", &adapter],
        2,
        "where the model expects [4, 128]",
        "trained for this model",
    );
}

#[test]
fn quantized_models_run() {
    for case in ["gptq-4", "awq", "bnb-nf4-nested", "fp8-blocks", "compressed-pack"] {
        let answer =
            json(&["run", "--tokens", "5,17,40", "--json", "--model", &golden::quantized(case).to_string_lossy()]);
        assert!(answer["rows"][0]["next"][0]["probability"].is_number(), "{case}: {answer}");
    }
}

#[test]
fn inspect_exits_zero_if_the_path_is_readable() {
    let report = json(&["inspect", &golden("llama"), "--json"]);
    assert_eq!(
        (report["support"].as_str(), report["model_type"].as_str(), report["category"].as_str()),
        (Some("native"), Some("llama"), Some("transformers"))
    );
    assert!(stdout(&pellucid(&["inspect", &golden("mixtral")])).contains("mixtral"));
    refused(&["inspect", "no/such/path"], 2, "no/such/path", "");
}

#[test]
fn the_schema_of_reports_names_every_field_and_the_ways_to_load_are_explained() {
    let (schema, report) = (json(&["inspect", "--schema"]), json(&["inspect", &golden("llama"), "--json"]));
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<String>>();
    assert_eq!(keys(&schema["properties"]), keys(&report));
    refused(&["inspect", "--schema", "--json"], 2, "cannot be used with", "");
    let explained = stdout(&pellucid(&["inspect", &golden("llama"), "--explain"]));
    assert!(explained.contains("\nloading strategies, in order:\n  native family: taken: `llama`"), "{explained}");
}

#[test]
fn registered_types_come_from_a_file_or_the_environment() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
    let config = std::fs::read_to_string(Path::new(&golden("llama")).join("config.json")).expect("a config");
    let changed = config.replace("\"model_type\": \"llama\"", "\"model_type\": \"acme_llm\"");
    std::fs::write(path("config.json"), changed).expect("written");
    std::fs::copy(Path::new(&golden("llama")).join("model.safetensors"), path("model.safetensors")).expect("copied");
    std::fs::write(path("types.toml"), "[architectures]\nacme_llm = \"llama\"\n").expect("written");
    std::fs::write(path("wrong.toml"), "[architectures]\nllama = \"gpt2\"\n").expect("written");
    let model = dir.path().to_str().expect("a path");
    let run = ["run", "--tokens", "5,6,7", "--model", model];
    refused(&run, 1, "`acme_llm`", "--assume llama");
    let original = stdout(&pellucid(&["run", "--tokens", "5,6,7", "--model", &golden("llama")]));
    let answer = pellucid(&[&run[..], &["--architectures", &path("types.toml")]].concat());
    assert_eq!(stdout(&answer), original);
    assert!(String::from_utf8_lossy(&answer.stderr).contains("because the type is registered as that"));
    let report = json(&["inspect", model, "--json", "--architectures", &path("types.toml")]);
    assert_eq!((report["support"].as_str(), report["registered_as"].as_str()), (Some("native"), Some("llama")));
    let environment = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
        command.args(run).env("PELLUCID_ARCHITECTURES", path(file)).output().expect("it runs")
    };
    assert_eq!(stdout(&environment("types.toml")), original);
    let answer = environment("wrong.toml");
    assert_eq!(answer.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&answer.stderr).contains("`llama` is itself native"));
    refused(&[&run[..], &["--architectures", &path("none.toml")]].concat(), 2, "none.toml", "");
}

#[test]
fn a_model_of_an_unknown_type_runs_only_with_assume_and_a_warning() {
    let parent = tempfile::tempdir().expect("a directory");
    // Same directory name, because results show it.
    let dir = parent.path().join("llama");
    std::fs::create_dir(&dir).expect("a directory");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&golden("llama")).join(file), dir.join(file)).expect("copied");
    }
    let config = std::fs::read_to_string(dir.join("config.json")).expect("a config");
    let changed =
        config.replace("\"model_type\": \"llama\"", "\"model_type\": \"acme_llm\", \"attention_multiplier\": 0.5");
    std::fs::write(dir.join("config.json"), changed).expect("written");
    let path = dir.to_str().expect("a path");
    let commands: [&[&str]; 4] = [
        &["run", "--tokens", "5,6,7"],
        &["generate", "--tokens", "5,6,7", "--max-new", "4"],
        &["lens", "--tokens", "5,6,7"],
        &["sites"],
    ];
    for command in commands {
        let call = |model: &str, more: &[&str]| pellucid(&[command, &["--model", model], more].concat());
        refused(&[command, &["--model", path]].concat(), 1, "`attention_multiplier`", "--assume llama");
        let (assumed, original) = (call(path, &["--assume", "llama"]), call(&golden("llama"), &[]));
        assert_eq!(stdout(&assumed), stdout(&original), "{command:?}");
        let stderr = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let (warned, quiet) = (stderr(&assumed), stderr(&original));
        assert!(warned.contains("warning: ") && warned.contains("`acme_llm`"), "{command:?}: {warned}");
        assert!(warned.contains("`attention_multiplier`") && !quiet.contains("warning: "), "{command:?}: {warned}");
    }
    refused(&["run", "--tokens", "5", "--model", path, "--assume", "lama"], 2, "`lama`", "similar names are `llama`");
    refused(&["run", "--tokens", "5", "--model", path, "--assume", "qwen2"], 1, "does not fit `qwen2`", "--assume");
    refused(&["run", "hi", "--assume", "qwen2"], 2, "own type, `llama`, is native", "leave out --assume");
    let report = json(&["inspect", path, "--json"]);
    assert_eq!(
        (report["support"].as_str(), report["assume"]["family"].as_str()),
        (Some("inspect-only"), Some("llama"))
    );
    assert!(stdout(&pellucid(&["inspect", path, "--assume", "llama"])).contains("--assume llama"));
}

/// The example conversation, whose template works on every model.
fn story() -> String {
    format!("{}/../../examples/chats/story.json", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn messages_are_rendered_located_and_continued() {
    let story = story();
    let shown = json(&["tokens", "--messages", &story, "--json"]);
    let tokens = shown["rows"][0]["tokens"].as_array().expect("tokens");
    let content = |message: u64| {
        let of_content = |token: &&Value| token["message"] == message && token["part"] == "content";
        tokens.iter().filter(of_content).map(|token| token["token"].as_str().expect("text")).collect::<String>()
    };
    assert_eq!(content(1).trim(), "Tom saw a dog.");
    assert_eq!(content(2).trim(), "The dog");
    assert!(tokens.iter().all(|token| token["role"].is_string()), "every token belongs to a message");

    // Positions of a message are those of its content.
    let count = tokens.iter().filter(|token| token["message"] == 1 && token["part"] == "content").count();
    let captured = json(&["run", "--messages", &story, "--capture", "embed", "--positions", "message:1", "--json"]);
    assert_eq!(captured["captures"][0]["shape"][0], count as u64);
    let users = json(&["run", "--messages", &story, "--capture", "embed", "--positions", "role:user", "--json"]);
    assert_eq!(users["captures"], captured["captures"]);

    // The model continues the final message, which ends the prompt.
    let generated = json(&["generate", "--messages", &story, "--max-new", "4", "--json"]);
    assert_eq!(generated["prompt_tokens"].as_array().map(Vec::len), Some(tokens.len()));
    assert!(generated["text"].as_str().is_some_and(|text| text.starts_with(' ')), "{generated}");
}

#[test]
fn generate_continues_several_prompts() {
    let prompts = ["Tom saw a dog. The", "Lily saw a bird. The"];
    let both = json(&["generate", prompts[0], prompts[1], "--max-new", "5", "--json"]);
    for (row, prompt) in prompts.iter().enumerate() {
        let alone = json(&["generate", prompt, "--max-new", "5", "--json"]);
        assert_eq!(both["rows"][row]["text"], alone["text"]);
        assert_eq!(both["rows"][row]["tokens"], alone["tokens"]);
    }
    let shown = stdout(&pellucid(&["generate", prompts[0], prompts[1], "--max-new", "5"]));
    assert!(shown.starts_with("row 0: dog") && shown.contains("\nrow 1: bird"), "{shown}");
}

#[test]
fn r1_streamed_text_is_the_text_of_the_result() {
    for stop in ["zzz", " was", "dog w", "o", " "] {
        let args = ["generate", "Tom saw a dog. The", "--max-new", "12", "--stop", stop];
        let streamed = stdout(&pellucid(&args));
        let text = json(&[&args[..], &["--json"]].concat())["text"].as_str().expect("a text").to_owned();
        assert_eq!(streamed, format!("{text}\n"), "--stop {stop:?}");
        assert!(!text.contains(stop));
    }
}

#[test]
fn bad_input_is_rejected_with_a_message_and_a_hint() {
    refused(&["run"], 2, "no prompt", "--tokens");
    refused(&["run", ""], 2, "prompt is empty", "character");
    refused(&["run", "--tokens", "1,x"], 2, "1,x", "--tokens 1,2,3");
    refused(&["run", "--tokens", "1,99999"], 2, "token 99999", "tokenizer");
    refused(&["run", "hi", "--capture", "layers.9.z"], 2, "no layer 9", "0 to 5");
    refused(&["run", "hi", "--capture", "layers.*.resid_pst"], 2, "no site is called", "resid_post");
    refused(&["run", "hi", "--capture", "z"], 2, "`z`", "layers.*.z");
    refused(&["run", "hi", "--capture", "logits", "--positions", "40"], 2, "position 40", "");
    refused(&["run", "hi", "--capture", "logits", "--positions", " zebra"], 2, "zebra", "");
    refused(&["run", "hi", "--model", "nosuch"], 2, "nosuch", "smollm2-135m");
    refused(&["run", "hi", "--out", "no/such/dir/x.safetensors"], 2, "no such directory", "exists");
    refused(&["generate", "hi", "--temperature", "-1"], 2, "temperature is -1", "");
    refused(&["generate", "hi", "--max-new", "300"], 2, "this model has 256", "fewer new tokens");
    refused(&["generate", "hi", "--chat"], 2, "no chat template", "--chat");
    refused(&["run", "hi", "--capture", "embed", "--positions", "message:0"], 2, "not a chat", "--messages");
    refused(&["tokens", "--messages", "no-such.json"], 2, "no-such.json", "--messages");
    let messages = tempfile::NamedTempFile::new().expect("a file");
    let path = messages.path().to_str().expect("text");
    for (content, problem) in
        [("[{", "EOF"), ("[{\"role\": \"user\"}]", "message 0: missing field"), ("[]", "no chat template")]
    {
        std::fs::write(path, content).expect("written");
        refused(&["generate", "--messages", path], 2, problem, "");
    }
    refused(&["pull", "nosuch"], 2, "nosuch", "");
}

/// Found by trying plausible wrong arguments: each was ignored without a word.
#[test]
fn flags_without_effect_are_refused_or_reported() {
    for command in ["run", "generate", "profile"] {
        refused(&[command, "hi", "--positions", "last"], 2, "--positions selects positions of --capture", "--capture");
    }
    for name in ["x.npz", "x.json", "x.pt"] {
        refused(&["run", "hi", "--capture", "embed", "--out", name], 2, "written as safetensors", ".safetensors");
        assert!(!Path::new(name).exists());
    }
    refused(&["run", "hi", "--explain", "--out", "x.safetensors"], 2, "--explain runs nothing", "leave out");
    refused(&["profile", "hi", "--capture", "embed", "--out", "x.safetensors"], 2, "writes no captures", "`run`");
    refused(&["profile", "hi", "--trace", "t.json", "--flame", "t.json"], 2, "name the same file", "two names");
    refused(&["run", "hi", "--adapter", "german="], 2, "NAME=DIR", "");
    refused(&["generate", "--tokens", "1,2", "--chat"], 2, "--chat wraps prompts", "--tokens");
    refused(&["tokens", "--tokens", "5000"], 2, "token 5000 does not exist: the model has 2048", "tokenizer");
    refused(&["inspect", "no/such/model"], 2, "no such file, directory or pulled model", "pellucid pull");
    refused(&["inspect", "builtin"], 2, "no such file", "pellucid sites");
    let stderr = |args: &[&str]| String::from_utf8_lossy(&pellucid(args).stderr).into_owned();
    let greedy = ["generate", "Tom", "--max-new", "2", "--top-k", "5", "--top-p", "0.9"];
    assert!(stderr(&greedy).contains("greedy decoding ignores --top-k and --top-p"), "{}", stderr(&greedy));
    assert!(!stderr(&[&greedy[..], &["--temperature", "1"]].concat()).contains("note:"));
    assert!(stderr(&["generate", "Tom", "--max-new", "2", "--stop", "\\n"]).contains("$'\\n'"));
    let rows = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(rows.path(), "{\"text\": \"Tom\", \"tokens\": [1]}\n").expect("written");
    let path = rows.path().to_str().expect("text");
    refused(&["run", "--input", path], 2, "line 1: neither text nor tokens, or both", "");
    // The lines of a file are prompts, too.
    std::fs::write(rows.path(), "\"Tom\"\n").expect("written");
    refused(&["run", "--input", path, "--chat"], 2, "line 1: builtin has no chat template", "--chat");
}

/// AVX-512 processes more columns at once but sums in the same order as AVX2, so the bits are
/// equal.
#[test]
#[cfg(target_arch = "x86_64")]
fn avx512_and_avx2_give_the_same_bits() {
    let dir = tempfile::tempdir().expect("a directory");
    let computed = |instructions: &str, dtype: &str| {
        let out = dir.path().join(format!("{instructions}-{dtype}.safetensors"));
        let path = out.to_str().expect("a path");
        let text = "Once upon a time, there was a little girl named Lily. ".repeat(6);
        let args =
            ["run", &text, "--dtype", dtype, "--capture", "layers.*.resid_post", "--capture", "logits", "--out", path];
        let run = Command::new(env!("CARGO_BIN_EXE_pellucid")).args(args).env("PELLUCID_ISA", instructions).output();
        stdout(&run.expect("the binary runs"));
        std::fs::read(out).expect("the file")
    };
    for dtype in ["f32", "bf16", "q8"] {
        let narrow = computed("avx2", dtype);
        assert_eq!(computed("avx512", dtype), narrow, "{dtype}");
        // Control: without fused multiply-add the last bits differ.
        if std::arch::is_x86_feature_detected!("fma") {
            assert_ne!(computed("portable", dtype), narrow, "{dtype}");
        }
    }
}
