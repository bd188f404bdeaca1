//! One decode step and one prompt of the built-in model, to be counted by callgrind: without a plan, with a plan that touches nothing, and
//! with every layer's stream captured; then prompts of several lengths with more and more layers captured.
//!
//!     valgrind --tool=callgrind --dump-before=one_step_mark target/release/one_step
//!
//! Callgrind writes what was executed since the last mark each time it comes to one. The program prints what lay between them, in order;
//! `.ci/instructions` puts both together and compares them with what was counted before.

#![allow(clippy::print_stdout)] // a program that prints what it measures

use pellucid_engine::{Action, Control, GenerateOptions, Model, Plan, Positions, RunOptions, Tap};
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
struct Marks(Vec<Option<Ended>>);

#[derive(Clone, Copy)]
enum Ended {
    Prompt(&'static str),
    Step(&'static str),
    Captures { tokens: usize, layers: usize },
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Ended::Prompt(plan) => write!(f, "prompt, {plan}"),
            Ended::Step(plan) => write!(f, "step, {plan}"),
            Ended::Captures { tokens, layers } => write!(f, "captures, {tokens} tokens, {layers} layers"),
        }
    }
}

impl Marks {
    fn mark(&mut self, ended: Option<Ended>) {
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
            prompt(&loaded.model, plan, PROMPT, name.map(Ended::Prompt), &mut marks)?;
            step(&loaded.model, plan, name, &mut marks)?;
        }
    }
    let depth = loaded.model.program().architecture().layers.len();
    for count in [PROMPT / 4, PROMPT / 2, PROMPT * 3 / 4] {
        // The last layers' streams cost less than the others: the buffers of layers past by can be had for nothing.
        for layers in 0..depth - 1 {
            let plan = Plan::capture((0..layers).map(|layer| format!("layers.{layer}.resid_post")));
            for ended in [None, Some(Ended::Captures { tokens: count, layers })] {
                prompt(&loaded.model, &plan, count, ended, &mut marks)?;
            }
        }
    }
    println!("{}", simd::instruction_set().name());
    for ended in marks.0 {
        println!("{}", ended.map_or_else(String::new, |ended| ended.to_string()));
    }
    Ok(())
}

fn tokens(count: usize) -> Vec<Vec<u32>> {
    vec![(0..count).map(|i| (20 + i * 37 % 73) as u32).collect()]
}

/// A prompt, of which the last position's logits are read, as everybody does.
fn prompt(
    model: &Model,
    plan: &Plan,
    count: usize,
    ended: Option<Ended>,
    marks: &mut Marks,
) -> pellucid_engine::Result<()> {
    let plan = plan.clone().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let rows = tokens(count);
    marks.mark(None);
    let run = model.run(&rows, &plan, &RunOptions::default())?;
    marks.mark(ended);
    black_box(run);
    Ok(())
}

/// Between the watcher's looks at two new tokens lies one step.
fn step(model: &Model, plan: &Plan, name: Option<&'static str>, marks: &mut Marks) -> pellucid_engine::Result<()> {
    let options = GenerateOptions { max_new: NEW, ..GenerateOptions::default() };
    let mut seen = 0;
    model.generate(&tokens(BEFORE_STEP), plan, &options, &mut |_, _| {
        seen += 1;
        marks.mark(name.filter(|_| seen == NEW).map(Ended::Step));
        Control::Go
    })?;
    Ok(())
}
