//! Runs one decode step and one prompt of the built-in model under callgrind: without a plan, with
//! a plan that touches nothing, and with every layer's residual stream captured; then prompts of
//! several lengths with an increasing number of captured layers.
//!
//!     valgrind --tool=callgrind --dump-before=one_step_mark target/release/one_step
//!
//! At each call of `one_step_mark`, callgrind dumps the instruction count since the previous one.
//! The program prints a label per dump, in order; `.ci/instructions` joins labels and counts and
//! compares them with the stored baseline.

#![allow(clippy::print_stdout)] // a program that prints what it measures

use pellucid_engine::{Action, Control, GenerateOptions, Model, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::{DType, Pool, simd};
use pellucid_models::{LoadOptions, LoadedModel, Storage};
use std::hint::black_box;
use std::sync::Arc;

/// Length of the measured prompt.
const PROMPT: usize = 64;
/// Length of the prompt before the measured step.
const BEFORE_STEP: usize = 9;
/// New tokens: the first comes from the prompt, the second from a step that still allocates
/// buffers; the third step is measured.
const NEW: usize = 3;

/// Number of measured rounds.
const ROUNDS: usize = 5;

/// Marker function for callgrind: must keep its name and must not be inlined.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn one_step_mark() {
    black_box(());
}

/// The label of the work before each mark; `None` if it is not measured.
struct Marks(Vec<Option<Label>>);

#[derive(Clone, Copy)]
enum Label {
    Prompt(&'static str),
    Step(&'static str),
    Captures { tokens: usize, layers: usize },
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Label::Prompt(plan) => write!(f, "prompt, {plan}"),
            Label::Step(plan) => write!(f, "step, {plan}"),
            Label::Captures { tokens, layers } => write!(f, "captures, {tokens} tokens, {layers} layers"),
        }
    }
}

impl Marks {
    fn mark(&mut self, label: Option<Label>) {
        one_step_mark();
        self.0.push(label);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One thread, because the counts of several depend on their timing.
    let pool = Some(Arc::new(Pool::new(1)));
    let options = LoadOptions { storage: Storage::As(DType::F32), pool, ..LoadOptions::default() };
    let loaded = LoadedModel::builtin(&options)?;
    let no_op = Tap::new("layers.2.resid_post", Action::Zero).positions(Positions::List(vec![]));
    let plans = [
        ("no plan", Plan::default()),
        ("a plan that touches nothing", Plan::of([no_op])),
        ("every layer captured", Plan::capture(["layers.*.resid_post"])),
    ];
    // Preallocated, because growing would be counted.
    let mut marks = Marks(Vec::with_capacity(128));
    // The first round fills caches and is not measured. Hash maps have random keys, so the counts
    // vary; `.ci/instructions` takes the median of the others.
    for round in 0..=ROUNDS {
        for (name, plan) in &plans {
            let name = (round > 0).then_some(*name);
            prompt(&loaded.model, plan, PROMPT, name.map(Label::Prompt), &mut marks)?;
            step(&loaded.model, plan, name, &mut marks)?;
        }
    }
    let depth = loaded.model.program().architecture().layers.len();
    for count in [PROMPT / 4, PROMPT / 2, PROMPT * 3 / 4] {
        // Capturing the last layer is cheaper, since it can reuse buffers of earlier layers: leave
        // it out.
        for layers in 0..depth - 1 {
            let plan = Plan::capture((0..layers).map(|layer| format!("layers.{layer}.resid_post")));
            for label in [None, Some(Label::Captures { tokens: count, layers })] {
                prompt(&loaded.model, &plan, count, label, &mut marks)?;
            }
        }
    }
    println!("{}", simd::instruction_set().name());
    for label in marks.0 {
        println!("{}", label.map_or_else(String::new, |label| label.to_string()));
    }
    Ok(())
}

fn tokens(count: usize) -> Vec<Vec<u32>> {
    vec![(0..count).map(|i| (20 + i * 37 % 73) as u32).collect()]
}

/// Runs a prompt and captures the logits of its last position.
fn prompt(
    model: &Model,
    plan: &Plan,
    count: usize,
    label: Option<Label>,
    marks: &mut Marks,
) -> pellucid_engine::Result<()> {
    let plan = plan.clone().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let rows = tokens(count);
    marks.mark(None);
    let run = model.run(&rows, &plan, &RunOptions::default())?;
    marks.mark(label);
    black_box(run);
    Ok(())
}

/// Runs a generation; one decode step lies between two calls of the per-token callback.
fn step(model: &Model, plan: &Plan, name: Option<&'static str>, marks: &mut Marks) -> pellucid_engine::Result<()> {
    let options = GenerateOptions { max_new: NEW, ..GenerateOptions::default() };
    let mut seen = 0;
    model.generate(&tokens(BEFORE_STEP), plan, &options, &mut |_, _| {
        seen += 1;
        marks.mark(name.filter(|_| seen == NEW).map(Label::Step));
        Control::Go
    })?;
    Ok(())
}
