//! Execution: passes of tokens walk the op list, taps apply where a plan put them, captures are handed over.
//!
//! The story of a call: the plan is compiled (`plan`), the rows are grouped, each group's tokens go through in one or more
//! passes (`pass.rs`); in a pass each op runs on a [`Frame`] (`frame.rs`) that holds the living edges; every value that is put
//! on an edge meets the edge's taps (`taps.rs`); what they capture gathers in `collect.rs`.

mod collect;
mod frame;
mod pass;
mod shared;
mod taps;
mod unembed;
mod vectors;
mod weight_of;

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
use crate::grad::{self, Cotangents, Tape, TapsBack};
use crate::interrupt::{Interrupt, Watch};
use crate::plan::{Capture, Compiled, Lengths, Plan, PlanCache, ValueId};
use crate::point::Point;
use crate::prefix::PrefixCache;
use crate::program::{EdgeId, OpKind, Program};
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
        let mut call = Call::new(self, &compiled, &prompts, options.chunk, false);
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

/// A call under way: the state of its rows and what has been collected.
pub(crate) struct Call<'a> {
    model: &'a Model,
    compiled: &'a Compiled,
    prompts: &'a [usize],
    chunk: usize,
    steps_follow: bool,
    pub rows: Vec<RowState>,
    pub collector: Collector,
    pub watch: Watch,
    /// The tokens of the pass under way, or of the last.
    pass: Pass,
    arena: Arena,
    buffers: Buffers,
}

impl<'a> Call<'a> {
    pub fn new(
        model: &'a Model,
        compiled: &'a Compiled,
        prompts: &'a [usize],
        chunk: Option<usize>,
        steps_follow: bool,
    ) -> Call<'a> {
        // Sources and values may lie anywhere in a row, so a plan that has some takes each prompt whole.
        let apart = compiled.sources.is_empty() && compiled.values.list.is_empty();
        let chunk = chunk.filter(|_| apart).unwrap_or(usize::MAX).max(1);
        let rows = prompts.iter().map(|&prompt| RowState::new(prompt, model.kv)).collect();
        let collector = Collector::new(compiled, !steps_follow && prompts.iter().all(|&n| n <= chunk));
        Call {
            model,
            compiled,
            prompts,
            chunk,
            steps_follow,
            rows,
            collector,
            watch: Watch::new(None),
            pass: Pass::default(),
            arena: Arena::default(),
            buffers: Buffers::new(model.program()),
        }
    }

    /// Room for `positions` positions of a row from the start.
    pub fn reserve(&mut self, row: usize, positions: usize) {
        self.rows[row].capacity = positions;
    }

    /// Takes what is left of the prompts of a group through. With `logits` the last position's logits of each row come back, row after row.
    pub fn prefill(&mut self, group: &[usize], inputs: &[Vec<u32>], logits: bool) -> Result<Vec<f32>> {
        let width = self.model.program.architecture().vocab;
        let mut ordered = vec![0.0; if logits { group.len() * width } else { 0 }];
        let left: Vec<(usize, &[u32])> = group.iter().map(|&row| (row, &inputs[row][self.rows[row].len..])).collect();
        let longest = left.iter().map(|(_, tokens)| tokens.len()).max().unwrap_or(0);
        let mut from = 0;
        while from < longest {
            let to = from.saturating_add(self.chunk).min(longest);
            let parts = left.iter().filter(|(_, tokens)| tokens.len() > from);
            let parts = parts.map(|&(row, tokens)| (row, &tokens[from..to.min(tokens.len())]));
            let values = self.pass(parts, logits, None)?;
            if logits {
                // Rows end in different chunks: each goes to its place in the group.
                for (row, line) in self.pass.ends(self.prompts) {
                    let place = group.iter().position(|&r| r == row).unwrap_or_default();
                    ordered[place * width..][..width].copy_from_slice(&values[line * width..][..width]);
                }
                self.arena.give(values);
            }
            from = to;
        }
        Ok(ordered)
    }

    /// Lets go of what only prompts needed.
    pub fn end_prefill(&mut self) {
        self.arena = Arena::default();
    }

    /// Takes the next tokens of the given rows through and gives the logits of each, row after row; [`Call::give_back`] takes them.
    pub fn step<'t>(&mut self, tokens: impl Iterator<Item = (usize, &'t [u32])>) -> Result<Vec<f32>> {
        self.pass(tokens, true, None)
    }

    /// Takes a step's logits back.
    pub fn give_back(&mut self, logits: Vec<f32>) {
        self.arena.give(logits);
    }

    /// Forgets a row's positions from `len` on.
    pub fn truncate(&mut self, row: usize, len: usize) {
        self.rows[row].truncate(len);
    }

    /// Takes the whole prompts of a group through, and keeps on the tape what a gradient will need.
    pub fn record(&mut self, group: &[usize], inputs: &[Vec<u32>], tape: &mut Tape) -> Result<()> {
        let parts = group.iter().map(|&row| (row, inputs[row].as_slice()));
        self.pass(parts, false, Some(tape)).map(|_| ())
    }

    /// Walks back from each metric that a tap asks the gradient of; gives what was captured, in the plan's order.
    fn gradients(&mut self, tapes: &[Tape]) -> Result<Vec<Capture>> {
        let mut captures = Vec::new();
        for metric in 0..if tapes.is_empty() { 0 } else { self.compiled.values.metrics.len() } {
            let mut taps = TapsBack::new(self.model, self.compiled, metric, self.collector.store())?;
            // What one group has read of another's rows is owed to them: the last group goes first.
            for tape in tapes.iter().rev() {
                self.backward(tape, &mut taps)?;
            }
            captures.append(&mut taps.end());
            self.collector.end_gradient(self.model, self.compiled, metric)?;
        }
        captures.sort_by_key(|(entry, capture)| (*entry, capture.row));
        Ok(captures.into_iter().map(|(_, capture)| capture).collect())
    }

    /// Walks back over what a tape holds; each gradient that somebody touches is shown to `cotangents`.
    pub fn backward(&mut self, tape: &Tape, cotangents: &mut dyn Cotangents) -> Result<()> {
        let (model, compiled, prompts) = (self.model, self.compiled, self.prompts);
        let (collector, buffers, watch) = (&mut self.collector, &mut self.buffers, &self.watch);
        // The forward pass has no use for its spare buffers until the walk is over.
        let arena = std::mem::take(&mut self.arena);
        let mut rerun = |range: std::ops::Range<usize>, arena: &mut Arena, tape: &mut Tape, from: &Tape| {
            // The row states of a whole prompt begin empty.
            let mut rows: Vec<RowState> = prompts.iter().map(|&prompt| RowState::new(prompt, model.kv)).collect();
            let pass = from.pass();
            let mut frame = Frame::new(&model.program, &model.weights, &model.pool, pass, &mut rows, arena, buffers);
            frame.prepare(model.program.architecture());
            tape.begin(pass, frame.rotations());
            from.entering(&model.program, range.clone()).for_each(|(edge, value)| frame.put_back(edge, value));
            let mut frame = frame.with_tape(Some(tape));
            let mut taps = Taps { model, compiled, collector, again: true, first_tap: 0 };
            for index in range {
                watch.check()?;
                model.backend.execute(index, &mut frame, &mut taps)?;
                frame.release(index, &mut taps, None);
            }
            frame.release_all(&mut taps);
            Ok(())
        };
        self.arena = grad::walk(model, compiled, tape, arena, watch, &mut rerun, cotangents)?;
        Ok(())
    }

    /// One pass; gives the logits of the tokens that somebody reads, if asked.
    fn pass<'t>(
        &mut self,
        parts: impl Iterator<Item = (usize, &'t [u32])>,
        logits: bool,
        mut tape: Option<&mut Tape>,
    ) -> Result<Vec<f32>> {
        let program = self.model.program();
        let (also, also_late) = match &tape {
            Some(tape) => (tape.reads.clone(), tape.reads_late.clone()),
            None => Default::default(),
        };
        let (compiled, prompts) = (self.compiled, self.prompts);
        // A plain run computes the last MLP everywhere: what may be looked at should not cost more for being looked at.
        let late_everywhere = !self.steps_follow && tape.is_none();
        let (also, also_late) = (&also[..], &also_late[..]);
        let wanted = Wanted { compiled, program, prompts, ends: logits, also, also_late, late_everywhere };
        self.pass.fill(parts, &self.rows, &wanted);
        let keep = logits.then(|| self.model.logits_edge());
        let mut frame = Frame::new(
            program,
            &self.model.weights,
            &self.model.pool,
            &self.pass,
            &mut self.rows,
            &mut self.arena,
            &mut self.buffers,
        );
        frame.prepare(program.architecture());
        if let Some(tape) = &mut tape {
            tape.begin(&self.pass, frame.rotations());
        }
        let mut frame = frame.with_tape(tape);
        let mut taps = Taps {
            model: self.model,
            compiled: self.compiled,
            collector: &mut self.collector,
            again: false,
            first_tap: 0,
        };
        let values = run_ops(self.model.backend.as_ref(), &mut frame, &mut taps, keep, &self.watch)?;
        for segment in &self.pass.segments {
            self.rows[segment.row].len += segment.count;
        }
        Ok(values)
    }
}

/// Nobody enters a layer: what leaves it is what came in. Gives the op after it.
pub(crate) fn pass_by(frame: &mut Frame, taps: &mut Taps, layer: usize) -> Result<usize> {
    let program = frame.program;
    let site = |point| program.edge_of(Site::layer(layer, point)).unwrap_or_default();
    let stream = frame.select(site(Point::ResidPre), site(Point::ResidPost));
    frame.put(site(Point::ResidPost), stream, taps)?;
    Ok(program.layer_ops(layer).end)
}

/// Walks the op list as far as somebody needs it. Gives the value of the edge to keep.
fn run_ops(
    backend: &dyn Backend,
    frame: &mut Frame,
    taps: &mut Taps,
    keep: Option<EdgeId>,
    watch: &Watch,
) -> Result<Vec<f32>> {
    let (program, compiled) = (frame.program, taps.compiled);
    let mut index = 0;
    while index < compiled.ops {
        watch.check()?;
        let op = &program.ops()[index];
        let skipped = op.layer.filter(|&layer| compiled.skipped[layer] && program.layer_ops(layer).start == index);
        if let Some(layer) = skipped {
            index = pass_by(frame, taps, layer)?;
            continue;
        }
        backend.execute(index, frame, taps)?;
        frame.release(index, taps, keep);
        if let (OpKind::Attention { .. }, Some(layer)) = (&op.kind, op.layer) {
            frame.forget_keys(layer);
        }
        index += 1;
    }
    let kept = keep.map(|edge| frame.take(edge)).unwrap_or_default();
    frame.release_all(taps);
    Ok(kept)
}
