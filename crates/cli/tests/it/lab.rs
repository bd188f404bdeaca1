//! The lab's commands on a model so small that a process takes milliseconds. Only the structure of
//! the output is asserted, because verdicts depend on the machine.

use crate::golden_path as golden;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the lab with its own cache directory, so that the user's baselines are not touched.
pub fn lab(cache: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
    command.arg("lab").args(args).env("NO_COLOR", "1").env("PELLUCID_CACHE", cache).current_dir(cache);
    command.output().expect("the binary runs")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn refused(output: &Output, message: &str, hint: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(message) && text.contains(hint) && !text.contains("panicked"), "{text}");
    assert!(output.stdout.is_empty());
}

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file")).expect("JSON")
}

/// A suite of two equal variants on a tiny model.
fn write_suite(dir: &Path) -> PathBuf {
    let text = format!(
        r#"
name = "tiny"
title = "A suite for the tests"
model = '{}'
reference = "one"

[precision]
pairs = 3
least_pairs = 2
budget_s = 60

[[variant]]
id = "one"

[[variant]]
id = "two"

[[workload]]
id = "prefill"
job = "prefill"
tokens = 8
repeats = 2
metrics = ["time", "load", "peak"]

[[workload]]
id = "other-model"
job = "steer"
tokens = 8
model = '{}'
"#,
        golden("llama"),
        golden("gpt2")
    );
    let path = dir.join("tiny.toml");
    std::fs::write(&path, text).expect("written");
    path
}

/// Runs the tiny suite and returns its result file.
fn measured(dir: &Path, name: &str, more: &[&str]) -> PathBuf {
    let (suite, out) = (write_suite(dir), dir.join(name));
    let (suite, path) = (suite.to_str().expect("a path"), out.to_str().expect("a path"));
    let output = lab(dir, &[&["run", suite, "--pairs", "2", "--budget", "300", "--out", path], more].concat());
    // Noise may make equal variants differ (1) or the A/A control fail (5); other codes are errors.
    assert!(matches!(output.status.code(), Some(0 | 1 | 5)), "{}", stderr(&output));
    out
}

#[test]
fn the_suites_are_listed_and_the_schema_is_printed() {
    let dir = tempfile::tempdir().expect("a directory");
    let list = stdout(&lab(dir.path(), &["list"]));
    for name in ["capture", "identify", "ladder", "peers", "sessions", "speed", "startup", "trace"] {
        assert!(list.lines().any(|line| line.split(' ').next() == Some(name)), "{list}");
    }
    // Each suite is also a command; former names are accepted but not shown.
    let help = stdout(&lab(dir.path(), &["--help"]));
    for (name, earlier) in [
        ("identify", &["loader"][..]),
        ("startup", &["load"]),
        ("tracing-cost", &["trace", "trace-profile"]),
        ("capture", &[]),
        ("peers", &[]),
        ("sessions", &[]),
        ("speed", &[]),
    ] {
        let usage = stdout(&lab(dir.path(), &[name, "--help"]));
        assert!(
            usage.contains(&format!("Usage: pellucid lab {name}")) && help.contains(&format!("\n  {name} ")),
            "{help}"
        );
        for earlier in earlier {
            assert_eq!(stdout(&lab(dir.path(), &[earlier, "--help"])), usage);
            assert!(!help.contains(&format!("\n  {earlier} ")), "{help}");
        }
    }
    let schema: Value = serde_json::from_str(&stdout(&lab(dir.path(), &["schema"]))).expect("JSON");
    assert_eq!(schema["$id"], "pellucid/lab-result/v1");
}

/// Runs the suite `identify` with these variables.
fn identify(dir: &Path, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
    command.args(["lab", "identify"]).args(args).env("NO_COLOR", "1").env("PELLUCID_CACHE", dir).current_dir(dir);
    for name in ["BENCHMARK_ITERATIONS", "BENCHMARK_WARMUP", "TEST_MODEL_PATH"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("the binary runs")
}

#[test]
fn identify_gives_correct_answers_and_writes_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = golden("llama");
    let variables = [("BENCHMARK_ITERATIONS", "500"), ("BENCHMARK_WARMUP", "0"), ("TEST_MODEL_PATH", model.as_str())];
    // A flag overrides its variable; the others come from the environment.
    let output = identify(dir.path(), &variables, &["--all", "--iterations", "3", "--output", "r.json"]);
    let page = stdout(&output);
    assert!(page.starts_with("# Pellucid Identify Benchmark Report"), "{page}");
    for part in ["## Performance Gates", "## Memory Usage", "## Coverage", "### 8. Regression Tests"] {
        assert!(page.contains(part), "{part}:\n{page}");
    }
    let found = json(&dir.path().join("r.json"));
    assert_eq!((&found["settings"]["iterations"], &found["settings"]["warmup"]), (&3.into(), &0.into()));
    assert_eq!(found["summary"]["wrong_outcomes"], 0);
    assert_eq!(found["summary"]["categories"].as_array().map(Vec::len), Some(9));
    let results = found["results"].as_array().expect("results");
    assert_eq!(found["summary"]["total_benchmarks"], results.len());
    for row in results {
        let (samples, mean) = (row["samples_ns"].as_array().expect("samples"), row["mean_time"].as_f64());
        assert_eq!(row["iterations"], samples.len(), "{row}");
        assert!(mean.is_some_and(|mean| mean > 0.0) && row["outcome"]["ok"] == true, "{row}");
        assert!(row["alloc_count"].is_u64() && row["memory_delta_mb"].is_f64(), "memory is a part of --all: {row}");
    }
    assert!(results.iter().any(|row| row["name"] == "real_model_open"));
    let memory = found["gates"].as_array().expect("gates").iter().find(|gate| gate["quantity"] == "memory_delta");
    assert_eq!(memory.expect("a gate")["state"], "met");

    // With three iterations there are too few rounds for any verdict but neutral.
    let again = identify(
        dir.path(),
        &variables,
        &["--category", "sae", "--iterations", "3", "--baseline", "r.json", "--output", "s.json"],
    );
    assert!(stdout(&again).contains("## Regression Detection"));
    let changes = json(&dir.path().join("s.json"))["comparison"]["changes"].clone();
    let changes = changes.as_array().expect("changes");
    assert_eq!(changes.len(), 7);
    assert!(changes.iter().all(|change| change["verdict"] == "neutral"));
    let schema: Value = serde_json::from_str(&stdout(&identify(dir.path(), &[], &["--schema"]))).expect("JSON");
    assert_eq!(schema["$id"], found["schema"]);
}

#[test]
fn identify_rejects_invalid_arguments() {
    let dir = tempfile::tempdir().expect("a directory");
    let refuse = |variables: &[(&str, &str)], args: &[&str], message: &str| {
        refused(&identify(dir.path(), variables, args), message, "");
    };
    refuse(&[("BENCHMARK_ITERATIONS", "many")], &[], "BENCHMARK_ITERATIONS is `many`");
    refuse(&[("TEST_MODEL_PATH", "no/such/model")], &[], "TEST_MODEL_PATH is `no/such/model`");
    refuse(&[], &["--category", "bananas"], "bananas");
    refuse(&[], &["--all", "--category", "sae"], "cannot be used with");
    refuse(&[], &["--iterations", "0"], "measure nothing");
    refuse(&[], &["--baseline", "none.json"], "none.json");
    refuse(&[], &["--output", "none/r.json"], "none/r.json");
    std::fs::write(dir.path().join("other.json"), r#"{"schema": "pellucid/lab-result/v1"}"#).expect("written");
    refuse(&[], &["--baseline", "other.json"], "its format is pellucid/lab-result/v1");
}

#[test]
fn a_missing_worker_is_named_with_the_command_that_builds_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let alone = dir.path().join("pellucid");
    std::fs::copy(env!("CARGO_BIN_EXE_pellucid"), &alone).expect("copied");
    let run = |args: &[&str]| {
        let mut command = Command::new(&alone);
        // `cargo test` sets these variables like `cargo run`, which would build the worker.
        command.env_remove("CARGO").env("PELLUCID_CACHE", dir.path()).current_dir(dir.path());
        command.arg("lab").args(args);
        loop {
            match command.output() {
                // A process that another test starts meanwhile holds the copy open for writing.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                output => return output.expect("the binary runs"),
            }
        }
    };
    refused(&run(&["identify"]), "pellucid-lab-worker is missing", "cargo build --release");
    let suite = write_suite(dir.path());
    let suite = suite.to_str().expect("a path");
    refused(&run(&["run", suite, "--allocations"]), "pellucid-lab-worker is missing", "cargo install");
    // Commands that do not count allocations need no worker.
    assert!(run(&["sessions", "--runs", "1"]).status.success());
}

#[test]
fn the_worker_without_a_task_names_pellucid_lab() {
    let output = Command::new(env!("CARGO_BIN_EXE_pellucid-lab-worker")).output().expect("the binary runs");
    assert!(output.status.code() == Some(2) && stderr(&output).contains("`pellucid lab`"), "{}", stderr(&output));
}

#[test]
fn noise_is_measured_for_the_given_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = stdout(&lab(dir.path(), &["noise", "--seconds", "0.2"]));
    assert!(text.contains("spread (MAD)") && text.contains("pairs to detect 2 %"), "{text}");
    let found: Value =
        serde_json::from_str(&stdout(&lab(dir.path(), &["noise", "--seconds", "0.2", "--json"]))).expect("JSON");
    assert!(found["runs"].as_u64().is_some_and(|runs| runs >= 20), "{found}");
    refused(&lab(dir.path(), &["noise", "--seconds", "0"]), "0 seconds", "between 0 and 3600");
}

#[test]
fn a_run_writes_every_output_and_counts_allocations() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (html, markdown, bencher) = (path("r.html"), path("r.md"), path("r-bencher.json"));
    let more = ["--html", &html, "--markdown", &markdown, "--bencher", &bencher, "--allocations"];
    let result = json(&measured(dir.path(), "r.json", &more));
    assert_eq!(result["schema"], "pellucid/lab-result/v1");
    // Two workloads × two pairings (the A/A control, and two with one) × two pairs × two processes.
    assert_eq!(result["runs"].as_array().map(Vec::len), Some(16));
    assert_eq!(result["comparisons"].as_array().map(Vec::len), Some(8), "three metrics and one, of two pairings");
    for cell in result["cells"].as_array().expect("cells") {
        assert_eq!(cell["state"], "SUPPORTED", "{cell}");
    }
    let allocations = result["allocations"].as_array().expect("allocations");
    assert_eq!(allocations.len(), 4);
    for counted in allocations {
        let found = &counted["allocations"];
        assert!(found["count"].as_u64().is_some_and(|count| count > 0), "{counted}");
        assert!(found["peak_live"].as_u64() <= found["bytes"].as_u64(), "{counted}");
    }
    assert!(result["runs"].as_array().expect("runs").iter().all(|run| run["answer"]["allocations"].is_null()));
    assert!(result["environment"]["hard"]["model of other-model"].is_string());
    let text = |path: &str| std::fs::read_to_string(path).expect("the file");
    assert!(text(&html).to_lowercase().contains("html") && text(&markdown).starts_with("# tiny"));
    assert!(json(Path::new(&bencher))["tiny/prefill/two"]["time"]["value"].is_number());
    let report = stdout(&lab(dir.path(), &["report", &path("r.json")]));
    assert!(report.contains("allocations of two on prefill") && report.contains("16 processes"), "{report}");
}

#[test]
fn results_are_saved_shown_and_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let (before, after) = (measured(dir.path(), "a.json", &[]), measured(dir.path(), "b.json", &["--seed", "2"]));
    let (a, b) = (before.to_str().expect("a path"), after.to_str().expect("a path"));
    assert!(stderr(&lab(dir.path(), &["baseline", "save", "main", a])).contains("main.json"));
    assert_eq!(stdout(&lab(dir.path(), &["baseline", "list"])), "main\n");
    assert!(stdout(&lab(dir.path(), &["baseline", "show", "main"])).contains("A suite for the tests"));
    refused(&lab(dir.path(), &["baseline", "save", "../main", a]), "not a valid baseline name", "");
    refused(&lab(dir.path(), &["baseline", "show", "other"]), "baselines: main", "");
    for before in [a, "main"] {
        let output = lab(dir.path(), &["compare", before, b, "--json"]);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", stderr(&output));
        let comparisons: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(comparisons.as_array().map(Vec::len), Some(8), "four of each variant");
    }
    // A result of another machine is refused without --force.
    let mut other = json(&after);
    other["environment"]["hard"]["cpu"] = "an abacus".into();
    std::fs::write(&after, other.to_string()).expect("written");
    refused(&lab(dir.path(), &["compare", a, b]), "an abacus", "--force");
    assert!(matches!(lab(dir.path(), &["compare", a, b, "--force"]).status.code(), Some(0 | 1)));
    other["schema"] = "pellucid/lab-result/v9".into();
    std::fs::write(&after, other.to_string()).expect("written");
    refused(&lab(dir.path(), &["compare", a, b, "--force"]), "lab-result/v9", "");
}

#[test]
fn an_interrupted_session_resumes_from_its_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("runs.jsonl");
    let path = log.to_str().expect("a path");
    measured(dir.path(), "whole.json", &["--log", path]);
    let lines: Vec<String> = std::fs::read_to_string(&log).expect("the log").lines().map(String::from).collect();
    assert_eq!(lines.len(), 16);
    // Ten processes and half of the eleventh.
    let half = &lines[10][..lines[10].len() / 2];
    std::fs::write(&log, format!("{}\n{half}", lines[..10].join("\n"))).expect("written");
    let (suite, out) = (write_suite(dir.path()), dir.path().join("again.json"));
    let args = ["run", suite.to_str().expect("a path"), "--pairs", "2", "--budget", "300", "--log", path, "--out"];
    let output = lab(dir.path(), &[&args[..], &[out.to_str().expect("a path")]].concat());
    assert!(stderr(&output).contains("resuming after 10 processes"), "{}", stderr(&output));
    let (whole, again) = (json(&dir.path().join("whole.json")), json(&out));
    assert_eq!(again["runs"].as_array().map(Vec::len), Some(16));
    for index in 0..10 {
        assert_eq!(whole["runs"][index]["answer"]["samples_s"], again["runs"][index]["answer"]["samples_s"]);
    }
    std::fs::write(&log, "bananas\n").expect("written");
    refused(&lab(dir.path(), &args[..8]), "not a lab log", "");
}

#[test]
fn an_invalid_suite_is_reported_with_its_mistake() {
    let dir = tempfile::tempdir().expect("a directory");
    refused(&lab(dir.path(), &["run", "nosuch"]), "unknown suite `nosuch`", "ladder");
    let good = std::fs::read_to_string(write_suite(dir.path())).expect("the suite");
    for (from, to, message) in [
        ("reference = \"one\"", "reference = \"three\"", "the reference is `three`"),
        ("job = \"steer\"", "job = \"dance\"", "dance"),
        ("tokens = 8", "tokens = 8\nbananas = 1", "bananas"),
    ] {
        let path = dir.path().join("bad.toml");
        std::fs::write(&path, good.replacen(from, to, 1)).expect("written");
        let output = lab(dir.path(), &["run", path.to_str().expect("a path")]);
        refused(&output, message, "docs/lab.md");
    }
    let suite = write_suite(dir.path());
    let suite = suite.to_str().expect("a path");
    refused(&lab(dir.path(), &["run", suite, "--model", "nosuch"]), "nosuch", "");
    refused(&lab(dir.path(), &["run", suite, "--html", "no/such/dir/r.html"]), "no such directory", "exists");
    refused(&lab(dir.path(), &["run", suite, "--baseline", "main"]), "baseline `main`", "");
}

#[test]
fn the_example_sessions_are_reported_with_phases_peaks_and_uses() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let page =
        stdout(&lab(dir.path(), &["sessions", "--runs", "2", "--json", &path("s.json"), "--keep", &path("kept")]));
    assert!(page.starts_with("# Pellucid Session Benchmark Report\n"), "{page}");
    assert!(
        page.contains("**Total Sessions Analyzed:** 4") && page.contains("| attr_ablation__run | 1 | run |"),
        "{page}"
    );
    // Three sessions attach the same SAE and read the same examples.
    assert!(page.contains("| sae__ready | 3 | ready | shared | Custom Model |"), "{page}");
    assert!(page.contains("- **sae__ready**: 3 uses, Custom Model"), "{page}");
    let result = json(&dir.path().join("s.json"));
    for session in result["sessions"].as_array().expect("sessions") {
        let runs = session["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        for run in runs {
            let phases = run["phases"].as_array().expect("phases");
            let names: Vec<&str> = phases.iter().filter_map(|phase| phase["name"].as_str()).collect();
            assert_eq!(names, ["config", "init", "prepare", "setup", "run", "save"]);
            let all: f64 = phases.iter().filter_map(|phase| phase["seconds"].as_f64()).sum();
            assert!(run["wall_s"].as_f64() >= Some(all), "{run}");
            assert!(phases.iter().all(|phase| phase["rss_peak"].as_u64() > Some(1_000_000)), "{run}");
        }
    }
    // The stores stay where they were asked to.
    assert!(dir.path().join("kept/stores/attr_grad/manifest.json").is_file());
}

#[test]
fn a_session_that_fails_is_reported_and_invalid() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("rows.jsonl"), "{\"text\": \"One day\"}\n").expect("written");
    let session = |ops: &str, prompt: &str| {
        format!(
            "ops = \"{ops}\"\n[dataset]\npath = \"rows.jsonl\"\nprompt = \"{{{prompt}}}\"\n[output]\npath = \"out\"\n"
        )
    };
    std::fs::write(dir.path().join("good.toml"), session("model_fwd", "text")).expect("written");
    std::fs::write(dir.path().join("bad.toml"), session("model_fwd", "story")).expect("written");
    let output = lab(dir.path(), &["sessions", "good.toml", "bad.toml", "--runs", "1", "--md", "s.md"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no field `story`"), "{}", stderr(&output));
    let page = std::fs::read_to_string(dir.path().join("s.md")).expect("the page");
    assert!(page.contains("| good__run | 1 |") && page.contains("❌ rows.jsonl, line 1: there is n..."), "{page}");
    refused(&lab(dir.path(), &["sessions", "none.toml"]), "none.toml: there is no such file", "session files");
    refused(&lab(dir.path(), &["sessions", "--python", "python3"]), "--gpt2", "");
    refused(
        &lab(dir.path(), &["sessions", "good.toml", "./good.toml"]),
        "two session files are named `good`",
        "rename",
    );
}

#[test]
fn a_suite_without_comparisons_is_invalid_with_a_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = lab(dir.path(), &["peers"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("nothing can be compared: only `pellucid`") && stderr(&output).contains("--python")
    );
    // A missing build.
    let good = std::fs::read_to_string(write_suite(dir.path())).expect("the suite");
    let bad = good.replace("id = \"two\"", "id = \"two\"\nbinary = \"no/such/build\"");
    std::fs::write(dir.path().join("bad.toml"), bad).expect("written");
    let output = lab(dir.path(), &["run", "bad.toml", "--pairs", "2"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("invalid") && text.contains("nothing was compared"), "{text}");
}

#[test]
fn a_page_has_a_roofline_and_a_history_finds_its_change_point() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let result = json(&measured(dir.path(), "r.json", &["--html", &path("r.html")]));
    assert!(result["roofline"]["bytes_per_s"].as_f64() > Some(1e8), "{}", result["roofline"]);
    assert!(std::fs::read_to_string(path("r.html")).expect("the page").contains("<section id=\"roofline\""));
    assert!(result["runs"][0]["padding"].is_u64());
    // Ten results of one machine: 20 % slower after the fifth.
    std::fs::create_dir(dir.path().join("old")).expect("made");
    for day in 0..10u64 {
        let mut result = result.clone();
        result["session"]["began"] = (1_700_000_000 + day * 86_400).into();
        for run in result["runs"].as_array_mut().expect("runs") {
            let seconds = if day < 5 { 0.1 } else { 0.12 } + 0.0001 * (day % 3) as f64;
            run["answer"]["samples_s"] = serde_json::json!([seconds]);
        }
        std::fs::write(dir.path().join(format!("old/day-{day}.json")), result.to_string()).expect("written");
    }
    std::fs::write(dir.path().join("old/other.json"), "{}").expect("written");
    let output = lab(dir.path(), &["history", "old", "--html", &path("h.html")]);
    let text = stdout(&output);
    assert!(stderr(&output).contains("skipped: "), "{}", stderr(&output));
    assert!(
        text.contains("tiny / prefill / one / time") && text.contains(" since day-5 (2023-11-19 22:13:20 UTC)"),
        "{text}"
    );
    let series: Value = serde_json::from_str(&stdout(&lab(dir.path(), &["history", "old", "--json"]))).expect("JSON");
    let times: Vec<&Value> = series.as_array().expect("a list").iter().filter(|s| s["metric"] == "time").collect();
    assert!(times.len() == 4 && times.iter().all(|s| s["steps"].as_array().map(Vec::len) == Some(1)), "{text}");
    assert!(std::fs::read_to_string(path("h.html")).expect("the page").contains("Results over time"));
    refused(&lab(dir.path(), &["history"]), "no results to analyze", "baseline save");
}

#[test]
fn the_selftest_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = lab(dir.path(), &["selftest", "--sessions", "1", "--pairs", "2", "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 1 | 5)), "{}", stderr(&output));
    let finding: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(finding["sessions"] == 1 && finding["pairs"] == 2 && finding["slow"] == 0.03, "{finding}");
    refused(&lab(dir.path(), &["selftest", "--slow", "7"]), "a slowdown of 7", "0.03");
    // Only workers read the variable, and they reject invalid values.
    let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
    command.args(["run", "Tom"]).env("PELLUCID_LAB_SLOW", "bananas");
    assert!(command.output().expect("the binary runs").status.success());
}

#[test]
fn workloads_are_selected_by_name_and_have_their_own_references() {
    let dir = tempfile::tempdir().expect("a directory");
    refused(&lab(dir.path(), &["speed", "--only", "bach"]), "there is no workload `bach`", "batch");
    let args = ["run", "ladder", "--candle"];
    refused(&lab(dir.path(), &args), "ladder has no variant of candle", "leave out --candle");
    let args = ["speed", "--model", "builtin", "--only", "batch", "stored-decode", "--pairs", "2", "--out", "r.json"];
    let output = lab(dir.path(), &args);
    // The verdict depends on the machine.
    assert!(matches!(output.status.code(), Some(0 | 1 | 5)), "{}", stderr(&output));
    for text in ["llama-cpp (--python PYTHON)", "candle (--candle)", "nothing to compare with: stored-decode"] {
        assert!(stderr(&output).contains(text), "{text}: {}", stderr(&output));
    }
    let result = json(&dir.path().join("r.json"));
    let compared: Vec<(&str, &str)> = result["comparisons"]
        .as_array()
        .expect("comparisons")
        .iter()
        .filter_map(|c| Some((c["variant"].as_str()?, c["reference"].as_str()?)))
        .collect();
    assert_eq!(compared, [("pellucid", "pellucid"), ("batch-32", "pellucid")]);
    assert!(result["cells"].as_array().expect("cells").iter().all(|cell| cell["state"] == "SUPPORTED"), "{result}");
}

#[test]
fn the_performance_page_has_every_dtype_and_pass() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = lab(dir.path(), &["performance", "--model", "builtin", "--md", "p.md", "--json", "p.json"]);
    assert!(stdout(&output).is_empty());
    let page = std::fs::read_to_string(dir.path().join("p.md")).expect("the page");
    for line in [
        "Generated by `pellucid lab performance --model builtin --md docs/op-profile.md`",
        "## Weights as f32",
        "## Weights as bf16",
        "## Weights as q8",
        "## Weights as stored in the file",
        "A decode step, ",
        "A prompt of 9 tokens, ",
        "## Cost of captures",
    ] {
        assert!(page.contains(line), "{line}\nis not in\n{page}");
    }
    let found = json(&dir.path().join("p.json"));
    let storages = found["storages"].as_array().expect("storages");
    assert_eq!(storages.len(), 4);
    assert!(storages.iter().all(|storage| storage["phases"].as_array().is_some_and(|phases| phases.len() == 3)));
    refused(&lab(dir.path(), &["performance", "--model", "no-such-model"]), "no-such-model", "");
}
