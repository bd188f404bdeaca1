//! Runs: one forward pass of rows under a plan, with the backward passes of its metrics.

mod vectors;

use crate::array::Array;
use crate::error::Result;
use crate::exec::Executor;
use crate::grad::{self, GradientTape};
use crate::interrupt::{Interrupt, Watch};
use crate::job::{CacheUse, Job, Saved};
use crate::memory::Moved;
use crate::model::Model;
use crate::plan::{Capture, Lengths, Plan, ValueId};
use crate::prefix::PrefixCache;
use crate::site::Site;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Tokens of a row that go through at once; the whole prompt where absent. It bounds memory and never changes a number.
    pub chunk: Option<usize>,
    /// Asked now and then whether to stop.
    pub interrupt: Option<Interrupt>,
    /// At most this many of the model's threads; all of them where absent. It never changes a number.
    pub threads: Option<usize>,
    /// Kept beginnings of rows, which need not be computed again where the plan touches nothing of them. It never changes a number.
    pub prefixes: Option<PrefixCache>,
    /// For gradients, keep only what enters each layer and run the layers again on the way back: the same numbers for less memory
    /// and more time.
    pub recompute: bool,
}

/// What a run gave back.
#[derive(Debug, Default)]
pub struct Run {
    /// What the plan captured, in the plan's order, row by row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves.
    pub saved: Vec<Saved>,
    /// Sites that patterns passed over because their layers do not have them.
    pub passed_over: Vec<Site>,
    /// For each row how many of its tokens were taken over from kept prefixes.
    pub reused: Vec<usize>,
    /// What moved between host and device.
    pub moved: Moved,
}

impl Run {
    /// A saved value: that of a row, or the one for all.
    pub fn value(&self, value: ValueId, row: usize) -> Option<&Array> {
        let found = |saved: &&Saved| saved.value == value && saved.row.is_none_or(|of| of == row);
        self.saved.iter().find(found).map(|saved| &saved.array)
    }

    /// The first capture of a site in a row.
    pub fn get(&self, site: Site, row: usize) -> Option<&Capture> {
        self.captures.iter().find(|capture| capture.site == site && capture.row == row)
    }
}

impl Model {
    /// Runs rows of tokens under a plan: one forward pass (or as many as the rows' dependencies need), no padding.
    pub fn run(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<Run> {
        let model = self.on_threads(options.threads)?;
        model.run_all(inputs, plan, options)
    }

    fn run_all(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<Run> {
        self.check_inputs(inputs, 0, options.chunk)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let compiled = self.compile(plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        let learns = options.prefixes.as_ref().is_some_and(PrefixCache::learns);
        let cache = if learns { CacheUse::Keep } else { CacheUse::Discard };
        let mut executor = Executor::new(self, Watch::new(options.interrupt.as_ref()));
        let mut job = Job::new(compiled.clone(), self.kv(), options.chunk, cache, false);
        let reused = self.take_over(options.prefixes.as_ref(), inputs, &mut job)?;
        let mut tapes = Vec::new();
        for group in &compiled.groups {
            match compiled.gradient_edges(self.program()) {
                Some(wanted) => {
                    let weights = compiled.values.weights.iter().map(|sought| sought.weight).collect();
                    let (last, recompute) = (compiled.ops - 1, options.recompute);
                    let mut tape = GradientTape::new(self.program(), &|edge| wanted[edge], weights, last, recompute);
                    grad::record(&mut executor, &mut job, group, inputs, &mut tape)?;
                    tapes.push(tape);
                }
                None => drop(executor.prefill(&mut job, group, inputs)?),
            }
        }
        job.end_step(self, &[])?;
        let gradients = grad::backward(&mut executor, &mut job, &tapes)?;
        self.learn(options.prefixes.as_ref(), &job, inputs.iter().map(Vec::as_slice));
        let saved = job.collector.take_saved();
        let memory = self.backend().memory();
        let mut captures = job.collector.finish(self.program(), &compiled, &prompts, memory)?;
        captures.extend(gradients);
        captures.sort_by_key(|capture| capture.tap);
        Ok(Run { saved, captures, passed_over: compiled.passed_over.clone(), reused, moved: executor.moved })
    }
}
