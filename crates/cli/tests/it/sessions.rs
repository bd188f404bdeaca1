//! `pellucid analyze`, `store` and `replay`.

use crate::commands::{json, pellucid, refused, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn session(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sessions").join(name);
    path.to_string_lossy().into_owned()
}

fn in_dir(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_string_lossy().into_owned()
}

/// A dataset that takes long enough to be killed in the middle.
fn long_dataset(dir: &tempfile::TempDir) -> String {
    let path = in_dir(dir, "long.jsonl");
    let line = |index: usize| {
        format!(
            "{{\"text\": \"One day, Lily found ball {index} in the park and took it home.\", \"pronoun\": \" She\"}}\n"
        )
    };
    std::fs::write(&path, (0..240).map(line).collect::<String>()).expect("written");
    path
}

#[test]
fn the_four_example_sessions_run_and_replay() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["base", "sae", "attr_grad", "attr_ablation"] {
        let output = in_dir(&dir, name);
        let text = stdout(&pellucid(&["analyze", &session(&format!("{name}.toml")), "--output", &output]));
        assert!(text.contains("examples   8 in 4 batches") && text.contains(&format!("wrote {output}")), "{text}");
        let text = stdout(&pellucid(&["replay", &output]));
        assert!(text.contains("every bit is equal"), "{text}");
    }
    let shown = json(&["store", "show", &in_dir(&dir, "attr_ablation"), "--json", "--top", "2"]);
    assert_eq!(shown["summary"]["hooks"][0]["latents"].as_array().map(Vec::len), Some(2));
    let names: Vec<&str> =
        shown["manifest"]["phases"].as_array().expect("phases").iter().filter_map(|own| own["name"].as_str()).collect();
    assert_eq!(names, ["config", "init", "prepare", "setup", "run", "save"]);
    let page = in_dir(&dir, "page.html");
    stdout(&pellucid(&["store", "show", &in_dir(&dir, "attr_grad"), "--html", &page]));
    assert!(std::fs::read_to_string(page).expect("a page").contains("layers.3.resid_post"));
    let same = pellucid(&["store", "diff", &in_dir(&dir, "sae"), &in_dir(&dir, "sae")]);
    assert!(stdout(&same).contains("same results"));
    let other = pellucid(&["store", "diff", &in_dir(&dir, "sae"), &in_dir(&dir, "base")]);
    assert_eq!(other.status.code(), Some(1));
}

#[test]
fn a_session_that_is_killed_leaves_no_store_and_resumes() {
    let dir = tempfile::tempdir().expect("a directory");
    let (output, dataset) = (in_dir(&dir, "s"), format!("dataset.path={}", long_dataset(&dir)));
    let args = ["analyze", &session("attr_ablation.toml"), "--output", &output, "--set", &dataset];
    let args = args.into_iter().chain(["--set", "output.part_rows=4"]).collect::<Vec<&str>>();
    let binary = env!("CARGO_BIN_EXE_pellucid");
    let mut child =
        Command::new(binary).args(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
    let first = PathBuf::from(format!("{output}.partial/parts/00001.json"));
    let started = Instant::now();
    while !first.exists() {
        assert!(started.elapsed() < Duration::from_secs(120), "no part was written");
        assert!(child.try_wait().expect("a process").is_none(), "the session ended before it could be killed");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    refused(&["store", "show", &output], 2, "has not finished", "run the session again");
    let report = json(&args.iter().copied().chain(["--json"]).collect::<Vec<_>>());
    let (parts, reused) = (report["parts"].as_u64().unwrap(), report["reused"].as_u64().unwrap());
    assert!(parts == 60 && reused >= 2 && reused < parts, "{parts} {reused}");
    assert_eq!(report["summary"]["examples"], 240);
    stdout(&pellucid(&["replay", &output]));
}

#[test]
fn a_full_disk_is_reported_and_the_session_resumes() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = in_dir(&dir, "s");
    // A limit on the size of files stands for a full disk: writes fail with an error.
    let script = format!(
        "trap '' XFSZ; ulimit -f 2; exec {} analyze {} --output {output}",
        env!("CARGO_BIN_EXE_pellucid"),
        session("base.toml")
    );
    let failed = Command::new("bash").arg("-c").arg(script).output().expect("bash");
    let message = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(2), "{message}");
    assert!(message.contains("cannot write") && message.contains("disk is not full"), "{message}");
    refused(&["store", "show", &output], 2, "has not finished", "run the session again");
    stdout(&pellucid(&["analyze", &session("base.toml"), "--output", &output]));
}

#[test]
fn sessions_are_checked_without_running() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = in_dir(&dir, "s");
    let text = stdout(&pellucid(&["analyze", &session("sae.toml"), "--output", &output, "--check"]));
    assert!(text.contains("the session is valid") && text.contains("(new)"), "{text}");
    assert!(!Path::new(&output).exists());
    let report = json(&["analyze", &session("attr_grad.toml"), "--output", &output, "--check", "--json"]);
    assert!(report["memory_bytes"].as_u64().unwrap() > 1_000_000 && report["forward_seconds"].as_f64().unwrap() > 0.0);
    let schema = json(&["analyze", "--schema"]);
    assert!(schema["properties"]["dataset"].is_object());
    let ops = json(&["analyze", "--ops", "--json"]);
    assert!(ops["ops"].as_array().unwrap().iter().any(|op| op["name"] == "model_ablation"));
}

#[test]
fn bad_sessions_are_refused_with_hints() {
    let base = session("base.toml");
    let refuse = |set: &str, problem: &str, hint: &str| refused(&["analyze", &base, "--set", set], 2, problem, hint);
    refuse("ops=nothing", "there is no op `nothing`", "similar ops");
    refuse("dataset.limt=3", "unknown field `limt`", "docs/sessions.md");
    refuse("dataset.path=/nowhere.jsonl", "there is no dataset /nowhere.jsonl", "relative to the session file");
    refused(&["analyze", "/nowhere.toml"], 2, "/nowhere.toml", "TOML or YAML");
    refused(&["store", "show", "/nowhere"], 2, "there is no store /nowhere", "output.path");
    let dir = tempfile::tempdir().expect("a directory");
    let output = in_dir(&dir, "s");
    stdout(&pellucid(&["analyze", &base, "--output", &output]));
    let other = ["analyze", &base, "--output", &output, "--set", "dataset.limit=2"];
    refused(&other, 2, "another session", "--replace");
    stdout(&pellucid(&other.iter().copied().chain(["--replace"]).collect::<Vec<_>>()));
}
