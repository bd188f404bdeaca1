//! Memory of long prompts grows linearly with their length. A separate test binary, because
//! allocations of other tests would be counted too.

use pellucid_engine::{Action, Control, GenerateOptions, Plan, Positions, RunOptions, Tap};
use pellucid_lab::counting::{CountingAllocator, during};
use pellucid_models::{LoadOptions, LoadedModel};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Held while memory is counted, so that tests do not overlap.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads a golden model with a longer context limit.
fn long_context_model(name: &str) -> LoadedModel {
    let to = golden::temp_models::with_config(name, |config| config["max_position_embeddings"] = 8192.into());
    LoadedModel::open(to.path(), &LoadOptions::default(), &mut |_| {}).expect("a model")
}

fn last_logits() -> Plan {
    Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last))
}

#[test]
fn a_prompt_twice_as_long_takes_twice_the_memory() {
    let _alone = alone();
    for name in ["llama", "mistral"] {
        let loaded = long_context_model(name);
        let last = last_logits();
        let peak = |tokens: u32| {
            let row = [(0..tokens).map(|i| i * 7 % 50).collect::<Vec<u32>>()];
            let run = || loaded.model.run(&row, &last, &RunOptions::default()).expect("a run");
            during(run).1.expect("counted").peak_live as f64
        };
        // Warm-up: threads allocate their scratch buffers on first use.
        peak(1024);
        let (one, two, four) = (peak(1024), peak(2048), peak(4096));
        assert!(two > 1.5 * one, "{name}: the prompts are what takes memory: {one} and {two} bytes");
        // With a full score matrix this would be four.
        let growth = (four - two) / (two - one);
        assert!((1.7..2.3).contains(&growth), "{name}: {one}, {two}, {four} bytes");
    }
}

/// A run without generation frees each layer's KV cache after its attention, so all layers share
/// one layer's memory. A generation keeps all of them.
#[test]
fn a_run_without_generation_keeps_the_kv_cache_of_one_layer() {
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
    // Warm-up: threads allocate their scratch buffers on first use.
    run();
    generate();
    let (run, generate) = (peak(&run), peak(&generate));
    // KV cache of four heads of 32. The two runs peak at different ops, so not all of the other
    // five layers show.
    let layer_bytes = length * 2 * 4 * 32 * size_of::<f32>();
    assert!(run + 2 * layer_bytes <= generate, "{run} and {generate} bytes, {layer_bytes} of a layer");
}
