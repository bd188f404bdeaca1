//! Runs: a forward pass of rows under a plan, and the backward passes of its metrics.

mod nan;
mod vectors;

pub use nan::NanOrigin;

use crate::adapter::RowAdapters;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::grad::{self, GradientTape};
use crate::interrupt::{Interrupt, InterruptPoller};
use crate::job::{CacheUse, CaptureOptions, Job, JobOptions, SavedValue};
use crate::memory::TransferStats;
use crate::model::Model;
use crate::needed_memory::{CallShape, check_call};
use crate::non_finite::NonFinite;
use crate::plan::{Capture, CompiledPlan, Lengths, Mark, Plan, ValueId};
use crate::prefix::PrefixCache;
use crate::site::Site;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Chunked prefill: tokens of a row per pass; the whole prompt if `None`. Bounds memory;
    /// results are bit-identical.
    pub chunk: Option<usize>,
    /// Polled during the run; ends it with an error.
    pub interrupt: Option<Interrupt>,
    /// Maximum number of threads; all threads of the model if `None`. Results are bit-identical.
    pub threads: Option<usize>,
    /// Prefix cache: reuses KV caches of earlier calls up to the first position that the plan
    /// touches. Results are bit-identical.
    pub prefixes: Option<PrefixCache>,
    /// Gradient checkpointing: retain only each layer's inputs and recompute the layers in the
    /// backward pass. Bit-identical, with less memory and more time.
    pub recompute: bool,
    /// How captures are stored. The default returns the buffers of the ops themselves where it can.
    pub captures: CaptureOptions,
    /// The adapter of each row.
    pub adapters: RowAdapters,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// The plan's captures, in plan order, row by row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves.
    pub saved: Vec<SavedValue>,
    /// Positions at which the plan's marks held, ordered by tap, row and position.
    pub marks: Vec<Mark>,
    /// Sites that a pattern of the plan skipped because their layers do not have them.
    pub passed_over: Vec<Site>,
    /// For each row the number of tokens reused from the prefix cache.
    pub reused: Vec<usize>,
    /// Transfers between host and device.
    pub moved: TransferStats,
}

impl Run {
    /// A saved value of a row, or the one of all rows.
    pub fn value(&self, value: ValueId, row: usize) -> Option<&Array> {
        let found = |saved: &&SavedValue| saved.value == value && saved.row.is_none_or(|of| of == row);
        self.saved.iter().find(found).map(|saved| &saved.array)
    }

    /// The first capture of a site in a row.
    pub fn get(&self, site: Site, row: usize) -> Option<&Capture> {
        self.captures.iter().find(|capture| capture.site == site && capture.row == row)
    }
}

impl Model {
    /// Runs rows of tokens under a plan, without padding: in one forward pass, or several if rows
    /// depend on each other.
    pub fn run(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<Run> {
        let model = self.on_threads(options.threads)?;
        let mut executor = Executor::new(&model, InterruptPoller::new(options.interrupt.as_ref()));
        model.run_all(inputs, plan, options, &mut executor)
    }

    /// Makes the checks of [`run`](Self::run) that need no weights.
    pub fn check_run(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<()> {
        self.check_rows(inputs, 0, options.chunk)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let compiled = self.compile(plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        check_stop(&compiled)?;
        self.check_op_ranges(&compiled, &self.row_adapters(&options.adapters, inputs.len())?)
    }

    /// Runs rows again to find the first activation that is NaN or infinite, for a run whose result
    /// is. Returns `None` if all activations in host memory are finite: then the plan's values or
    /// gradients are not.
    pub fn find_non_finite(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions) -> Result<Option<NonFinite>> {
        let model = self.on_threads(options.threads)?;
        // Every position is computed, and edits may write NaN.
        let (plan, options) =
            (Plan { allow_nan: true, ..plan.clone() }, RunOptions { prefixes: None, ..options.clone() });
        let mut executor = Executor::new(&model, InterruptPoller::new(options.interrupt.as_ref())).scanning();
        model.run_all(inputs, &plan, &options, &mut executor)?;
        Ok(executor.non_finite().cloned())
    }

    fn run_all(&self, inputs: &[Vec<u32>], plan: &Plan, options: &RunOptions, executor: &mut Executor) -> Result<Run> {
        self.check_inputs(inputs, 0, options.chunk)?;
        let prompts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let compiled = self.compile(plan, Lengths { prompts: &prompts, limits: &prompts }, false)?;
        check_stop(&compiled)?;
        let adapters = self.row_adapters(&options.adapters, inputs.len())?;
        self.check_op_ranges(&compiled, &adapters)?;
        let adds_prefixes = options.prefixes.as_ref().is_some_and(PrefixCache::adds_prefixes);
        let cache = if adds_prefixes { CacheUse::Keep } else { CacheUse::Discard };
        let chunk = options.chunk.filter(|_| !compiled.has_gradients());
        check_call(self, &compiled, &CallShape { limits: &prompts, chunk, cache, captures: &options.captures })?;
        let job_options = JobOptions {
            chunk: options.chunk,
            captures: options.captures.clone(),
            adapters,
            ..JobOptions::new(self.kv(), cache)
        };
        let mut job = Job::new(self.program(), compiled.clone(), job_options)?;
        let reused = self.reuse_prefixes(options.prefixes.as_ref(), inputs, &mut job)?;
        let mut tapes = Vec::new();
        for group in &compiled.groups {
            match compiled.gradient_edges(self.program()) {
                Some(wanted) => {
                    let weights = compiled.values.weight_grads.iter().map(|sought| sought.weight).collect();
                    let (last, recompute) = (compiled.ops - 1, options.recompute);
                    let mut tape = GradientTape::new(self.program(), &|edge| wanted[edge], weights, last, recompute);
                    grad::record(executor, &mut job, group, inputs, &mut tape)?;
                    tapes.push(tape);
                }
                None => drop(executor.prefill(&mut job, group, inputs)?),
            }
        }
        job.end_step(self, &[])?;
        let gradients = grad::backward(executor, &mut job, &tapes)?;
        self.store_prefixes(options.prefixes.as_ref(), &job, inputs.iter().map(Vec::as_slice));
        let (saved, marks) = (job.collector.take_saved(), job.collector.take_marks());
        let memory = self.backend().memory();
        let moved = &mut executor.moved;
        let mut captures = job.collector.finish(self.program(), &compiled, &prompts, memory, moved)?;
        captures.extend(gradients);
        captures.sort_by_key(|capture| capture.tap);
        Ok(Run { saved, captures, marks, passed_over: compiled.passed_over.clone(), reused, moved: executor.moved })
    }
}

/// Refuses a plan that ends rows, which a run does not.
fn check_stop(compiled: &CompiledPlan) -> Result<()> {
    match compiled.can_stop() {
        true => Err(Error::input("`stop` ends a generation, and this is a run", "use `mark`, which also runs report")),
        false => Ok(()),
    }
}
