//! One decode step and one prompt of the built-in model, to be counted by callgrind: without a plan, with a plan that touches nothing, and
//! with every layer's stream captured.
//!
//!     valgrind --tool=callgrind --dump-before=one_step_mark target/debug/examples/one_step
//!
//! Callgrind writes what was executed since the last mark each time it comes to one. The program prints what lay between them, in order;
//! `.ci/instructions` puts both together and compares them with what was counted before.

#![allow(clippy::print_stdout)] // a program that prints what it measures

use pellucid_engine::{Action, Control, Generate, Model, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::{DType, Pool, simd};
use pellucid_models::{LoadOptions, LoadedModel, Storage};
use std::hint::black_box;
use std::sync::Arc;

/// Tokens of the prompt that is counted.
const PROMPT: usize = 64;
/// Tokens of the prompt before the step that is counted.
const BEFORE_STEP: usize = 9;
/// New tokens: the first comes from the prompt, the second from a step that grows what it needs; the third is counted.
const NEW: usize = 3;

/// Times that each is counted.
const ROUNDS: usize = 5;

/// Where callgrind looks: its name must survive, and it must be called.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn one_step_mark() {
    black_box(());
}

/// What lay between each mark and the one before it, and under which plan; none where it does not count.
struct Marks(Vec<Option<(&'static str, &'static str)>>);

impl Marks {
    fn mark(&mut self, ended: Option<(&'static str, &'static str)>) {
        one_step_mark();
        self.0.push(ended);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One thread: what several do at once depends on their timing.
    let pool = Some(Arc::new(Pool::new(1)));
    let options = LoadOptions { storage: Storage::As(DType::F32), pool, ..LoadOptions::default() };
    let loaded = LoadedModel::builtin(&options)?;
    let nowhere = Tap::new("layers.2.resid_post", Action::Zero).positions(Positions::List(vec![]));
    let plans = [
        ("no plan", Plan::default()),
        ("a plan that touches nothing", Plan::of([nowhere])),
        ("every layer captured", Plan::capture(["layers.*.resid_post"])),
    ];
    // With room for all of them: growing would be counted.
    let mut marks = Marks(Vec::with_capacity(128));
    // The first round finds what the others only look up; of these the median counts, since tables are hashed with other keys each time.
    for round in 0..=ROUNDS {
        for (name, plan) in &plans {
            let name = (round > 0).then_some(*name);
            prompt(&loaded.model, plan, name, &mut marks)?;
            step(&loaded.model, plan, name, &mut marks)?;
        }
    }
    println!("{}", if simd::has_avx2() { "AVX2" } else { "portable" });
    for ended in marks.0 {
        println!("{}", ended.map_or_else(String::new, |(what, plan)| format!("{what}, {plan}")));
    }
    Ok(())
}

fn tokens(count: usize) -> Vec<Vec<u32>> {
    vec![(0..count).map(|i| (20 + i * 37 % 73) as u32).collect()]
}

/// A prompt, of which the last position's logits are read, as everybody does.
fn prompt(model: &Model, plan: &Plan, name: Option<&'static str>, marks: &mut Marks) -> pellucid_engine::Result<()> {
    let plan = plan.clone().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let rows = tokens(PROMPT);
    marks.mark(None);
    let run = model.run(&rows, &plan, &RunOptions::default())?;
    marks.mark(name.map(|name| ("prompt", name)));
    black_box(run);
    Ok(())
}

/// Between the watcher's looks at two new tokens lies one step.
fn step(model: &Model, plan: &Plan, name: Option<&'static str>, marks: &mut Marks) -> pellucid_engine::Result<()> {
    let options = Generate { max_new: NEW, ..Generate::default() };
    let mut seen = 0;
    model.generate(&tokens(BEFORE_STEP), plan, &options, &mut |_, _| {
        seen += 1;
        marks.mark(name.filter(|_| seen == NEW).map(|name| ("step", name)));
        Control::Go
    })?;
    Ok(())
}
