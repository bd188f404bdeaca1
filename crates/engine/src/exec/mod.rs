//! Execution: passes of tokens walk the op list, taps apply where a plan put them, captures are handed over.
//!
//! The story of a call (`call.rs`): the plan is compiled (`plan`), the rows are grouped, each group's tokens go through in one or more
//! passes (`pass.rs`); in a pass each op runs on a [`Frame`] (`frame.rs`) that holds the living edges; every value that is put
//! on an edge meets the edge's taps (`taps.rs`); what they capture gathers in `collect.rs`.

mod call;
mod collect;
mod frame;
mod pass;
mod shared;
mod taps;
mod unembed;
mod vectors;
mod weight_of;

pub(crate) use call::{After, Call, pass_by};
pub(crate) use collect::Collector;
pub use frame::Frame;
pub(crate) use frame::{Arena, Buffers};
pub(crate) use pass::Wanted;
pub use pass::{Pass, RowState, Segment};
pub use shared::WeakModel;
pub use taps::Taps;

use crate::array::Array;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::grad::Tape;
use crate::interrupt::{Interrupt, Watch};
use crate::plan::{Capture, Compiled, Lengths, Plan, PlanCache, ValueId};
use crate::point::Point;
use crate::prefix::PrefixCache;
use crate::program::{EdgeId, Program};
use crate::site::{self, Site};
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::borrow::Cow;
use std::sync::Arc;

/// A program with its weights, ready to run. Cheap to share between threads.
#[derive(Clone)]
pub struct Model {
    program: Arc<Program>,
    weights: Arc<Weights>,
    backend: Arc<dyn Backend>,
    pool: Arc<Pool>,
    plans: Arc<PlanCache>,
    kv: KvFormat,
}

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
}

/// A value that a run saved.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Which value of the plan.
    pub value: ValueId,
    /// The row that it belongs to; none where it is one for all.
    pub row: Option<usize>,
    /// The step of a generation that computed it; 0 is the prompt.
    pub step: usize,
    /// The value.
    pub array: Array,
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
    /// A model that runs on the CPU with the shared threads.
    pub fn new(program: Program, weights: Weights) -> Model {
        let weights = weights.with_folded_gains(&program);
        Model {
            program: Arc::new(program),
            weights: Arc::new(weights),
            backend: Arc::new(crate::cpu::Cpu),
            pool: Pool::global(),
            plans: Arc::default(),
            kv: KvFormat::default(),
        }
    }

    /// Keeps compiled plans from now on, as is the case unless turned off, or lets go of them; for all clones of this model. It never
    /// changes a result.
    pub fn keep_plans(&self, on: bool) {
        self.plans.keep(on);
    }

    /// How many compiled plans are kept.
    pub fn cached_plans(&self) -> usize {
        self.plans.len()
    }

    /// Checks a plan against the program and rows of these lengths, or finds it checked.
    pub(crate) fn compile(&self, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Arc<Compiled>> {
        self.plans.compile(&self.program, plan, lengths, logits)
    }

    /// The same model on other threads.
    pub fn with_pool(mut self, pool: Arc<Pool>) -> Model {
        self.pool = pool;
        self
    }

    /// The same model with keys and values kept otherwise between tokens. What is rounded there changes numbers.
    pub fn with_kv(mut self, format: KvFormat) -> Model {
        self.kv = format;
        self
    }

    /// How keys and values are kept.
    pub fn kv(&self) -> KvFormat {
        self.kv
    }

    /// The same model on at most so many of its threads.
    pub(crate) fn on_threads(&self, threads: Option<usize>) -> Result<Cow<'_, Model>> {
        match threads {
            Some(0) => Err(Error::input("threads is 0", "take at least one thread, or leave threads out")),
            Some(threads) => Ok(Cow::Owned(self.clone().with_pool(Arc::new(self.pool.at_most(threads))))),
            None => Ok(Cow::Borrowed(self)),
        }
    }

    /// Who executes its ops.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }

    /// The same model with its ops executed by another.
    pub fn with_backend(&self, backend: Arc<dyn Backend>) -> Model {
        Model { backend, ..self.clone() }
    }

    /// Its program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its threads.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn shared_weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Its weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

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
        let after = if learns { After::Keys } else { After::Nothing };
        let mut call = Call::new(self, &compiled, &prompts, options.chunk, after);
        call.watch = Watch::new(options.interrupt.as_ref());
        let reused = self.take_over(options.prefixes.as_ref(), &compiled, inputs, &mut call)?;
        let mut tapes = Vec::new();
        for group in &compiled.groups {
            match compiled.gradient_edges(&self.program) {
                Some(wanted) => {
                    let weights = compiled.values.weights.iter().map(|sought| sought.weight).collect();
                    let last = compiled.ops - 1;
                    let mut tape = Tape::new(&self.program, &|edge| wanted[edge], weights, last, options.recompute);
                    call.record(group, inputs, &mut tape)?;
                    tapes.push(tape);
                }
                None => drop(call.prefill(group, inputs, false)?),
            }
        }
        call.collector.end_step(self, &compiled, &[])?;
        let gradients = call.gradients(&tapes)?;
        self.learn(options.prefixes.as_ref(), &compiled, &call, inputs.iter().map(Vec::as_slice));
        let saved = call.collector.take_saved();
        let mut captures = call.collector.finish(&self.program, &compiled, &prompts);
        captures.extend(gradients);
        captures.sort_by_key(|capture| capture.tap);
        Ok(Run { saved, captures, passed_over: compiled.passed_over.clone(), reused })
    }

    /// The sites that a text means on this model.
    pub fn find(&self, text: &str) -> Result<site::Matches> {
        site::find(&self.program, text)
    }

    /// Refuses inputs that cannot run, before anything runs.
    pub(crate) fn check_inputs(&self, inputs: &[Vec<u32>], more: usize, chunk: Option<usize>) -> Result<()> {
        // Positions of a model that sets no limit itself: more than any text, less than what would overflow.
        const MOST: usize = 1 << 20;
        let architecture = self.program.architecture();
        if chunk == Some(0) {
            return Err(Error::input("the chunk is 0", "take at least one token at once, or leave the chunk out"));
        }
        if inputs.is_empty() {
            return Err(Error::input("there is no input", "give at least one prompt or list of tokens"));
        }
        for (row, tokens) in inputs.iter().enumerate() {
            if tokens.is_empty() {
                return Err(Error::input(
                    format!("row {row} is empty"),
                    "a row needs at least one token; models with a beginning-of-text token can start from it",
                ));
            }
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= architecture.vocab) {
                return Err(Error::input(
                    format!("row {row} has token {token}, and the vocabulary has {} tokens", architecture.vocab),
                    "use tokens of this model's own tokenizer",
                ));
            }
            let length = tokens.len().saturating_add(more);
            let context = architecture.context.unwrap_or(MOST);
            if length > context {
                return Err(Error::input(
                    format!("row {row} would come to {length} positions, and this model has {context}"),
                    "shorten the prompt or ask for fewer new tokens",
                ));
            }
        }
        Ok(())
    }

    fn logits_edge(&self) -> EdgeId {
        self.program.edge_of(Site::model(Point::Logits)).unwrap_or_default()
    }
}
