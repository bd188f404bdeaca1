//! Interrupted sessions, reuse by content key, and two writers.

use crate::helpers::{error_of, example, open, run, run_sources};
use pellucid_engine::Interrupt;
use pellucid_sessions::config::ConfigSource;
use pellucid_sessions::session::Event;
use pellucid_sessions::{RunOptions, Store};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn session(output: &Path, more: serde_json::Value) -> Vec<ConfigSource> {
    let mut sources = example("attr_ablation.toml", json!({"output": {"path": output, "part_rows": 2}}));
    sources.push(ConfigSource::Json(more));
    sources
}

#[test]
fn an_interrupted_session_resumes_with_its_finished_parts() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("s");
    let sources = session(&output, json!({}));
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let options = RunOptions {
        interrupt: Some(Interrupt(Arc::new(move || flag.load(Ordering::Relaxed)))),
        ..RunOptions::default()
    };
    let opened = open(&sources).expect("a session");
    let (problem, _) = error_of(opened.run(&options, &mut |event| {
        if matches!(event, Event::Progress(done) if done >= 0.5) {
            stop.store(true, Ordering::Relaxed);
        }
    }));
    assert!(problem.contains("interrupted"), "{problem}");
    let (problem, remedy) = error_of(Store::open(&output));
    assert!(problem.contains("has not finished") && remedy.contains("run the session again"), "{problem}");
    let outcome = run_sources(&sources).expect("resumed");
    assert_eq!((outcome.parts, outcome.reused), (4, 2));
    let whole = run("attr_ablation.toml", &directory.path().join("whole"), json!({"output": {"part_rows": 2}}));
    assert_eq!(outcome.store.manifest().content_hash, whole.manifest().content_hash);
    assert!(!directory.path().join("s.partial").exists());
}

#[test]
fn a_part_that_was_cut_off_is_computed_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("s");
    let sources = session(&output, json!({}));
    let whole = run_sources(&sources).expect("a run").store;
    let hash = whole.manifest().content_hash.clone();
    // Back to a partial directory, as a machine that lost power may leave it.
    let partial = directory.path().join("s.partial");
    std::fs::create_dir_all(partial.join("parts")).expect("a directory");
    for table in ["examples", "latents"] {
        std::fs::rename(output.join(table), partial.join(table)).expect("moved");
    }
    for (index, part) in whole.manifest().parts.iter().enumerate() {
        let record = partial.join(format!("parts/{index:05}.json"));
        std::fs::write(record, serde_json::to_vec(part).expect("JSON")).expect("written");
    }
    std::fs::remove_dir_all(&output).expect("removed");
    let cut = partial.join("latents/part-00001.parquet");
    let bytes = std::fs::read(&cut).expect("a part");
    std::fs::write(&cut, &bytes[..bytes.len() - 9]).expect("cut");
    let outcome = run_sources(&sources).expect("resumed");
    assert_eq!((outcome.parts, outcome.reused), (4, 3));
    assert_eq!(outcome.store.manifest().content_hash, hash);
}

#[test]
fn a_finished_session_is_not_computed_again_and_a_changed_one_only_where_it_changed() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("s");
    let first = run_sources(&session(&output, json!({}))).expect("a run");
    assert_eq!((first.parts, first.reused), (4, 0));
    let again = run_sources(&session(&output, json!({}))).expect("again");
    assert_eq!((again.parts, again.reused), (4, 4));
    assert_eq!(again.store.manifest().created, first.store.manifest().created);
    // Fewer examples: the store would change, which needs permission; equal parts are reused.
    let changed = session(&output, json!({"dataset": {"limit": 5}}));
    let (problem, remedy) = error_of(run_sources(&changed));
    assert!(problem.contains("another session") && remedy.contains("replace"), "{problem} {remedy}");
    let options = RunOptions { replace: true, ..RunOptions::default() };
    let outcome = open(&changed).expect("a session").run(&options, &mut |_| {}).expect("replaced");
    assert_eq!((outcome.parts, outcome.reused, outcome.store.rows("examples")), (3, 2, 5));
    assert!(!directory.path().join("s.old").exists());
    // Other ops have other keys.
    let other = session(&output, json!({"ops": "logit_diffs_sae"}));
    let outcome = open(&other).expect("a session").run(&options, &mut |_| {}).expect("replaced");
    assert_eq!(outcome.reused, 0);
}

#[test]
fn two_sessions_cannot_write_one_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("s");
    let sources = session(&output, json!({}));
    let (first, second) = (open(&sources).expect("one"), open(&sources).expect("two"));
    let mut refused = None;
    let outcome = first.run(&RunOptions::default(), &mut |event| {
        if refused.is_none() && matches!(event, Event::Progress(_)) {
            refused = Some(error_of(second.run(&RunOptions::default(), &mut |_| {})));
        }
    });
    let (problem, remedy) = refused.expect("a second run");
    assert!(problem.contains("another session is writing") && remedy.contains("output.path"), "{problem}");
    outcome.expect("the first session goes on");
    assert!(Store::open(&output).is_ok());
}

#[test]
fn directories_of_other_things_are_not_overwritten() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("notes.txt"), "mine").expect("written");
    let (problem, remedy) = error_of(run_sources(&session(directory.path(), json!({}))));
    assert!(problem.contains("is not a store") && remedy.contains("does not exist yet"), "{problem}");
    assert!(directory.path().join("notes.txt").exists());
}
