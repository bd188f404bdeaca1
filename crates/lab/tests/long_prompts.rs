//! What long prompts take: memory grows with their length, not with its square. In a process of its own, since whatever else runs beside it is
//! counted too.

#[allow(dead_code)] // each test file uses its own part of this module
#[path = "../../models/tests/golden/mod.rs"]
mod golden;

use pellucid_engine::{Action, Control, GenerateOptions, Plan, Positions, RunOptions, Tap};
use pellucid_lab::counting::{Counting, during};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held while memory is counted: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A golden model with room for longer texts than it was made for.
fn roomy(name: &str) -> LoadedModel {
    let (from, to) = (golden::path(name), tempfile::tempdir().expect("a directory"));
    for entry in std::fs::read_dir(from).expect("the case") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, to.path().join(path.file_name().expect("a name"))).expect("a copy");
    }
    let file = to.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    config["max_position_embeddings"] = 8192.into();
    std::fs::write(&file, config.to_string()).expect("a file");
    LoadedModel::open(to.path(), &LoadOptions::default(), &mut |_| {}).expect("a model")
}

fn last_logits() -> Plan {
    Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last))
}

#[test]
fn a_prompt_twice_as_long_takes_twice_the_memory() {
    let _alone = alone();
    for name in ["llama", "mistral"] {
        let loaded = roomy(name);
        let last = last_logits();
        let peak = |tokens: u32| {
            let row = [(0..tokens).map(|i| i * 7 % 50).collect::<Vec<u32>>()];
            let run = || loaded.model.run(&row, &last, &RunOptions::default()).expect("a run");
            during(run).1.expect("counted").peak_live as f64
        };
        // Threads make their room for repacked inputs when they first need it.
        peak(1024);
        let (one, two, four) = (peak(1024), peak(2048), peak(4096));
        assert!(two > 1.5 * one, "{name}: the prompts are what takes memory: {one} and {two} bytes");
        // Were there a matrix of scores, this would be four.
        let growth = (four - two) / (two - one);
        assert!((1.7..2.3).contains(&growth), "{name}: {one}, {two}, {four} bytes");
    }
}

/// Nobody goes on from a plain run: its layers share the room for keys and values, where a generation has to keep those of all.
#[test]
fn a_plain_run_keeps_the_keys_of_one_layer() {
    let _alone = alone();
    let loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the model");
    let architecture = loaded.model.program().architecture();
    let length = architecture.context.expect("a limit") - 1;
    let row = [(0..length as u32).map(|i| i * 7 % 50).collect::<Vec<u32>>()];
    let run = || drop(loaded.model.run(&row, &last_logits(), &RunOptions::default()).expect("a run"));
    let generate = || {
        let options = GenerateOptions { max_new: 1, ..GenerateOptions::default() };
        drop(loaded.model.generate(&row, &Plan::default(), &options, &mut |_, _| Control::Go).expect("a token"));
    };
    let peak = |work: &dyn Fn()| during(work).1.expect("counted").peak_live as usize;
    // Threads make their room when they first need it.
    run();
    generate();
    let (run, generate) = (peak(&run), peak(&generate));
    // Keys and values of four heads of 32. The two have their peaks at different ops, so not all of the other five layers show.
    let of_a_layer = length * 2 * 4 * 32 * size_of::<f32>();
    assert!(run + 2 * of_a_layer <= generate, "{run} and {generate} bytes, {of_a_layer} of a layer");
}
