//! Memory grows with a prompt's length, not with its square. In a process of its own, since whatever else runs beside it is counted too.

#[allow(dead_code)] // each test file uses its own part of this module
#[path = "../../models/tests/golden/mod.rs"]
mod golden;

use pellucid_engine::{Plan, Positions, RunOptions, Tap};
use pellucid_lab::counting::{Counting, during};
use pellucid_models::{LoadOptions, LoadedModel};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

#[test]
fn a_prompt_twice_as_long_takes_twice_the_memory() {
    for name in ["llama", "mistral"] {
        let loaded = roomy(name);
        let last =
            Plan::default().with(Tap::new("logits", pellucid_engine::Action::Capture(None)).positions(Positions::Last));
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
