//! Limits of memory and threads, rows of input files, and warnings about NaN. Tests are named for
//! the findings of the security test and of the test with real weights.

use crate::commands::{json, refused, stdout};
use std::process::{Command, Output};

fn with_variable(name: &str, value: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pellucid"));
    command.args(args).env(name, value).env("NO_COLOR", "1").output().expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn f17_thread_counts_are_bounded() {
    for count in ["0", "1025", "20000", "70000"] {
        refused(&["run", "Once", "--threads", count], 2, "--threads", "");
    }
    for wrong in ["abc", "-1", "0", "20000", "18446744073709551615", ""] {
        let output = with_variable("PELLUCID_THREADS", wrong, &["run", "Once"]);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("PELLUCID_THREADS") && stderr(&output).contains("1 to 1024"));
    }
    stdout(&with_variable("PELLUCID_THREADS", "2", &["run", "Once"]));
    // Other libraries' variables may have other forms.
    stdout(&with_variable("OMP_NUM_THREADS", "4,2", &["run", "Once"]));
}

#[test]
fn f20_loads_runs_and_generations_that_do_not_fit_are_refused() {
    let needs = |args: &[&str]| refused(args, 2, "may be used", "--memory-limit");
    // The process itself is larger than this, so nothing may be added.
    needs(&["run", "Once", "--memory-limit", "1MB"]);
    refused(&["run", "Once", "--memory-limit", "1MB"], 2, "loading", "");
    let golden = crate::golden_path("llama");
    refused(&["run", "--model", &golden, "--tokens", "1,2", "--memory-limit", "1MB"], 2, "weights needs", "");
    let output = with_variable("PELLUCID_MEMORY_LIMIT", "1MB", &["run", "Once"]);
    assert!(stderr(&output).contains("may be used: 1.0 MB for the whole process"), "{}", stderr(&output));
    let output = with_variable("PELLUCID_MEMORY_LIMIT", "lots", &["run", "Once"]);
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("PELLUCID_MEMORY_LIMIT"),
        "{}",
        stderr(&output)
    );
    refused(&["run", "Once", "--memory-limit", "lots"], 2, "80%", "");
    for enough in ["none", "100%", "4GB"] {
        stdout(&crate::commands::pellucid(&["run", "Once", "--memory-limit", enough]));
    }
}

/// A limit on address space below what the run needs ends in an error, not in an abort.
#[test]
#[cfg(target_os = "linux")]
fn f20_a_limit_on_address_space_is_an_error() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("[{}]\n", vec!["5"; 200].join(",")).repeat(500)).expect("written");
    // All attention of 500 rows: 500 × 6 layers × 4 heads × 200 × 200 floats are 1.9 GB.
    let script = format!(
        "ulimit -v 1500000; {} run --input {} --threads 1 --capture 'layers.*.attn_probs'",
        env!("CARGO_BIN_EXE_pellucid"),
        file.path().display()
    );
    let output = Command::new("bash").arg("-c").arg(script).output().expect("bash");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("this run") && stderr(&output).contains("ulimit -v"), "{}", stderr(&output));
}

#[test]
fn r10_an_empty_row_of_a_file_names_the_line() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    for (content, line) in
        [("\"Once\"\n\n\"\"\n", "line 3"), ("[1, 2]\n[]\n", "line 2"), ("{\"tokens\": []}\n", "line 1")]
    {
        std::fs::write(path, content).expect("written");
        refused(&["run", "--input", path], 2, line, "at least one");
    }
}

#[test]
fn f12_a_warning_about_nan_says_where_it_began() {
    let dir = tempfile::tempdir().expect("a directory");
    let plan = dir.path().join("plan.json");
    // Each edit writes a finite value; their sum overflows.
    let edit = r#"{"taps": [{"site": "layers.2.resid_post", "positions": [1], "set": 3e38},
        {"site": "layers.3.mlp_out_post", "positions": [1], "set": 3e38}]}"#;
    std::fs::write(&plan, edit).expect("written");
    let path = plan.to_str().expect("text");
    let stderr = stderr(&crate::commands::pellucid(&["run", "Tom saw a dog", "--plan", path]));
    assert!(stderr.contains("NaN first appears at `layers."), "{stderr}");
    // A generation cannot choose a token from such logits.
    refused(&["generate", "Tom saw", "--max-new", "2", "--plan", path], 2, "all logits of step 0 are NaN", "edit");
}

#[test]
fn r12_a_prompt_draws_the_same_tokens_at_any_place() {
    let sampled = |prompts: &[&str]| {
        let options = ["--temperature", "1", "--seed", "5", "--max-new", "8", "--json"];
        json(&[&["generate"][..], prompts, &options[..]].concat())
    };
    let alone = sampled(&["Tom saw a"]);
    let batch = sampled(&["Lily", "One day,", "Tom saw a", "Tom saw a"]);
    assert_eq!(batch["rows"][2]["tokens"], alone["tokens"]);
    assert_ne!(batch["rows"][3]["tokens"], alone["tokens"], "a copy of a prompt is another sample");
}
