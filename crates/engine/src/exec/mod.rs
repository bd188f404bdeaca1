//! The executor: packs tokens of jobs into passes and runs the op list.
//!
//! This is the only code that runs the op list forward. A plain run is one job and one pass; a
//! generation is one job and many passes; gradient checkpointing replays a job (`replay.rs`);
//! branches are jobs that join a pass at a later op; `through` and `unembed` run some of the ops on
//! given vectors. A row's results are bit-identical in any batch, so packing never changes them.

mod prefill;
mod replay;

use crate::backend::cpu::Cpu;
use crate::backend::{Arena, Backend, Buffers, Frame, RetainedValues, Taps};
use crate::error::Result;
use crate::interrupt::InterruptPoller;
use crate::job::{Job, Pass, RowState};
use crate::memory::{TransferStats, Value};
use crate::model::Model;
use crate::non_finite::{NonFinite, NonFiniteScan};
use crate::program::{EdgeId, OpKind, Program};
use std::collections::HashMap;
use std::ops::Range;

/// The next tokens of one row of a job.
pub(crate) struct RowTokens<'t> {
    /// Index of the job among those of the pass.
    pub job: usize,
    pub row: usize,
    pub tokens: &'t [u32],
}

/// The ops to run, and the edge that stays alive at their end.
pub(crate) struct OpSequence<'a> {
    pub ops: Range<usize>,
    /// Run only these ops of the range, in order; `None` runs all.
    pub only: Option<&'a [usize]>,
    /// The edge whose value the caller takes afterwards.
    pub keep: Option<EdgeId>,
    /// Free all other edges at the end.
    pub last: bool,
}

/// Executes passes on a model, reusing buffers between passes.
pub(crate) struct Executor {
    model: Model,
    pub watch: InterruptPoller,
    /// The current pass, or the last one.
    pass: Pass,
    /// The row states, taken from their jobs while the pass runs.
    rows: Vec<RowState>,
    arena: Arena,
    buffers: Buffers,
    /// Transfers between host and device so far.
    pub moved: TransferStats,
    /// Looks for values that are not finite, in a run that was started to find them.
    scan: Option<NonFiniteScan>,
}

impl Executor {
    pub fn new(model: &Model, watch: InterruptPoller) -> Executor {
        let buffers = Buffers::new(model.program());
        let (pass, rows, arena) = (Pass::default(), Vec::new(), Arena::default());
        let moved = TransferStats::default();
        Executor { model: model.clone(), watch, pass, rows, arena, buffers, moved, scan: None }
    }

    /// Returns this executor, looking for values that are not finite.
    pub fn scanning(self) -> Executor {
        Executor { scan: Some(NonFiniteScan::default()), ..self }
    }

    /// The first value that was not finite, if it looks for one.
    pub fn non_finite(&self) -> Option<&NonFinite> {
        self.scan.as_ref()?.found.as_ref()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The last pass.
    pub fn last_pass(&self) -> &Pass {
        &self.pass
    }

    /// Returns a buffer for reuse, such as the logits of a pass.
    pub fn give_back(&mut self, buffer: Vec<f32>) {
        self.arena.give(buffer);
    }

    /// Frees the buffers of past passes.
    pub fn free_buffers(&mut self) {
        self.arena = Arena::default();
    }

    /// Runs one pass: packs the next tokens of some rows, job after job, and runs the ops up to the
    /// last that any job needs.
    ///
    /// With `logits`, returns the logits of the tokens that need them, `[tokens of
    /// TokenSet::ForLogits, vocab]`. With one job, a failing tap ends the pass with its error; with
    /// several, the error is stored in its job and the others continue.
    pub fn pass<'t>(
        &mut self,
        jobs: &mut [&mut Job],
        parts: impl Iterator<Item = RowTokens<'t>>,
        logits: bool,
        retained: Option<&mut RetainedValues>,
    ) -> Result<Vec<f32>> {
        self.begin();
        self.pack(jobs, parts.map(|part| (part, None)));
        let keep = if logits { self.model.program().logits_edge() } else { None };
        let ops = 0..jobs.iter().map(|job| job.compiled.ops).max().unwrap_or(0);
        let outcome = self.run_ops(jobs, OpSequence { ops, only: None, keep, last: true }, retained);
        self.end(jobs);
        if outcome.is_err() {
            self.buffers.clear();
        }
        outcome?;
        keep.map_or_else(|| Ok(Vec::new()), |edge| self.take(edge))
    }

    /// Runs the listed ops on a given value of edge `from`; returns the value of edge `to`.
    pub fn run_listed(
        &mut self,
        job: &mut Job,
        pass: Pass,
        (from, value): (EdgeId, &[f32]),
        ops: &[usize],
        to: EdgeId,
        retained: Option<&mut RetainedValues>,
    ) -> Result<Vec<f32>> {
        self.pass = pass;
        self.rows = vec![RowState::new(self.pass.tokens.len(), self.model.kv())];
        self.buffers.put(from, value.to_vec());
        let range = ops[0]..ops[ops.len() - 1] + 1;
        let outcome =
            self.run_ops(&mut [job], OpSequence { ops: range, only: Some(ops), keep: Some(to), last: true }, retained);
        self.rows.clear();
        outcome?;
        self.take(to)
    }

    /// Takes the value of an edge, downloading it if necessary.
    fn take(&mut self, edge: EdgeId) -> Result<Vec<f32>> {
        let memory = self.model.backend().memory();
        let value = self.buffers.take(edge, memory)?;
        if memory.is_some() {
            self.moved.waits += 1;
            self.moved.to_host += 4 * value.len();
        }
        Ok(value)
    }

    /// Starts an empty pass.
    pub fn begin(&mut self) {
        self.pass.clear();
        self.rows.clear();
        self.buffers.set_features(HashMap::new());
    }

    /// Adds tokens of rows to the pass, at the given position or after the row's last computed one.
    pub fn pack<'t>(&mut self, jobs: &mut [&mut Job], parts: impl Iterator<Item = (RowTokens<'t>, Option<usize>)>) {
        let program = self.model.program();
        for (part, position) in parts {
            let job = &mut *jobs[part.job];
            let position = position.unwrap_or(job.rows[part.row].len);
            self.pass.add(program, (part.job, job), part.row, position, part.tokens);
            self.rows.push(std::mem::take(&mut job.rows[part.row]));
        }
    }

    /// Gives new buffers capacity for `tokens` tokens, to which the pass will grow.
    pub fn reserve_tokens(&mut self, tokens: usize) {
        self.arena.set_growth(tokens as f64 / self.pass.tokens.len() as f64);
    }

    /// Appends the values of rows that join the pass to an edge.
    pub fn extend_edge(&mut self, edge: EdgeId, more: Value) {
        self.buffers.extend(edge, more, self.model.backend().memory());
    }

    /// Runs ops. This is the only loop over ops in the forward direction.
    pub fn run_ops(
        &mut self,
        jobs: &mut [&mut Job],
        sequence: OpSequence,
        retained: Option<&mut RetainedValues>,
    ) -> Result<()> {
        let Executor { model, watch, pass, rows, arena, buffers, moved, scan } = self;
        model.check_files()?;
        let (program, backend) = (model.program(), model.backend());
        let frame = Frame::new(program, model.weights(), model.pool(), pass, rows, arena, buffers);
        let frame = frame.with_saes(model.saes()).with_adapters(model.adapters());
        let mut frame = frame.with_memory(backend.memory());
        frame.prepare(program.architecture());
        let mut retained = retained;
        if let Some(retained) = &mut retained {
            retained.begin(pass, frame.rotations());
        }
        let mut frame = frame.with_retained(retained);
        let mut taps = Taps { ops: model, jobs };
        let mut listed = sequence.only.map(|ops| ops.iter().copied().peekable());
        let mut index = sequence.ops.start;
        while index < sequence.ops.end {
            if listed.as_mut().is_some_and(|listed| listed.next_if_eq(&index).is_none()) {
                index += 1;
                continue;
            }
            watch.check()?;
            if let Some(layer) = skipped_layer(program, &taps, index) {
                index = skip_layer(&mut frame, &mut taps, layer)?;
                continue;
            }
            if let OpKind::Sae { x, target, sae, out, .. } = program.ops()[index].kind
                && !taps.runs_sae(sae)
            {
                frame.pass_on(target.unwrap_or(x), out, index, &mut taps)?;
                frame.free_dead_edges(index, &mut taps, sequence.keep);
                index += 1;
                continue;
            }
            frame.mark_absent(&taps, index);
            // The CPU runs taps inside an op itself, so only a device needs to know.
            let tapped_inside = backend.memory().is_some() && taps.touches_inside(program, index);
            // Devices do not know adapters.
            let adapted = backend.memory().is_some() && frame.is_adapted(index);
            if backend.runs(&program.ops()[index].kind, tapped_inside) && !adapted {
                backend.execute(index, &mut frame, &mut taps)?;
            } else {
                frame.fall_back(index)?;
                Cpu.execute(index, &mut frame, &mut taps)?;
            }
            if let Some(scan) = scan.as_mut() {
                let kind = &program.ops()[index].kind;
                for edge in kind.tap_edges().into_iter().chain(kind.outputs()) {
                    scan.look(program, pass, taps.jobs, edge, frame.stored(edge));
                }
            }
            frame.free_dead_edges(index, &mut taps, sequence.keep);
            let op = &program.ops()[index];
            if let (OpKind::Attention { .. }, Some(layer)) = (&op.kind, op.layer) {
                frame.free_kv(layer);
            }
            index += 1;
        }
        if sequence.last {
            frame.free_all_but(sequence.keep, &mut taps);
        }
        *moved += frame.moved;
        // The results are right only if the files had the same contents all the time.
        model.check_files()
    }

    /// Ends the pass: returns the row states, with their new lengths, to their jobs.
    pub fn end(&mut self, jobs: &mut [&mut Job]) {
        for (segment, mut row) in self.pass.segments.iter().zip(self.rows.drain(..)) {
            row.len = segment.position + segment.count;
            jobs[segment.job].rows[segment.row] = row;
        }
    }
}

/// The layer that op `index` begins, if every job of the pass skips it.
fn skipped_layer(program: &Program, taps: &Taps, index: usize) -> Option<usize> {
    let layer = program.ops()[index].layer.filter(|&layer| program.layer_ops(layer).start == index)?;
    taps.jobs.iter().all(|job| job.compiled.skipped[layer]).then_some(layer)
}

/// Copies the residual stream past a skipped layer; returns the op after it.
fn skip_layer(frame: &mut Frame, taps: &mut Taps, layer: usize) -> Result<usize> {
    let program = frame.program;
    let (input, output) = program.layer_ends(layer);
    frame.copy_edge(input, output, taps)?;
    Ok(program.layer_ops(layer).end)
}
