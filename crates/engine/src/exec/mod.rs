//! The executor: packs tokens of jobs into passes and walks the op list.
//!
//! This is the only code that walks the op list forward. A plain run is one job and one pass; a generation is one job and many
//! passes; recomputation for gradients replays a job (`replay.rs`); branches are jobs that join a pass at a later op; `through` and
//! `unembed` run some of the ops on given vectors. Rows are bit-identical in any company, so packing never changes a number.

mod prefill;
mod replay;

use crate::backend::cpu::Cpu;
use crate::backend::{Arena, Backend, Buffers, Frame, KeptValues, Taps};
use crate::error::Result;
use crate::interrupt::Watch;
use crate::job::{Job, Pass, RowState};
use crate::memory::{Moved, Value};
use crate::model::Model;
use crate::point::Point;
use crate::program::{EdgeId, OpKind, Program};
use crate::site::Site;
use std::ops::Range;

/// The next tokens of one row of a job.
pub(crate) struct RowTokens<'t> {
    /// Index of the job among those of the pass.
    pub job: usize,
    pub row: usize,
    pub tokens: &'t [u32],
}

/// Which ops a walk runs, and which edge stays alive at its end.
pub(crate) struct Walk<'a> {
    pub ops: Range<usize>,
    /// Of these ops only the listed ones, in order; all where absent.
    pub only: Option<&'a [usize]>,
    /// The edge whose value the caller takes.
    pub keep: Option<EdgeId>,
    /// Free all other edges at the end.
    pub last: bool,
}

/// Executes passes on a model, with memory that passes reuse.
pub(crate) struct Executor {
    model: Model,
    pub watch: Watch,
    /// The tokens of the pass under way, or of the last one.
    pass: Pass,
    /// The states of its rows, taken from their jobs while the pass runs.
    rows: Vec<RowState>,
    arena: Arena,
    buffers: Buffers,
    /// What moved between host and device so far.
    pub moved: Moved,
}

impl Executor {
    pub fn new(model: &Model, watch: Watch) -> Executor {
        let buffers = Buffers::new(model.program());
        let (pass, rows, arena) = (Pass::default(), Vec::new(), Arena::default());
        Executor { model: model.clone(), watch, pass, rows, arena, buffers, moved: Moved::default() }
    }

    /// The model that it runs.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokens of the last pass.
    pub fn last_pass(&self) -> &Pass {
        &self.pass
    }

    /// Takes a buffer back, such as logits that were read.
    pub fn give_back(&mut self, buffer: Vec<f32>) {
        self.arena.give(buffer);
    }

    /// Frees the buffers of past passes.
    pub fn free_buffers(&mut self) {
        self.arena = Arena::default();
    }

    /// Runs one pass: packs the next tokens of some rows, job after job, and walks the op list as far as any of the jobs needs.
    ///
    /// With `logits`, returns those of the tokens that need them, `[tokens of Domain::Read, vocab]`. A failing tap ends the pass with
    /// an error if there is one job; with several, the failure is left in its job and the others go on.
    pub fn pass<'t>(
        &mut self,
        jobs: &mut [&mut Job],
        parts: impl Iterator<Item = RowTokens<'t>>,
        logits: bool,
        kept: Option<&mut KeptValues>,
    ) -> Result<Vec<f32>> {
        self.begin();
        self.pack(jobs, parts.map(|part| (part, None)));
        let keep = if logits { self.model.program().logits_edge() } else { None };
        let ops = 0..jobs.iter().map(|job| job.compiled.ops).max().unwrap_or(0);
        let outcome = self.walk(jobs, Walk { ops, only: None, keep, last: true }, kept);
        self.end(jobs);
        if outcome.is_err() {
            self.buffers.clear();
        }
        outcome?;
        keep.map_or_else(|| Ok(Vec::new()), |edge| self.take(edge))
    }

    /// Runs the listed ops on a value that is given at their first edge; returns the value of edge `to`.
    pub fn run_listed(
        &mut self,
        job: &mut Job,
        pass: Pass,
        (from, value): (EdgeId, &[f32]),
        ops: &[usize],
        to: EdgeId,
        kept: Option<&mut KeptValues>,
    ) -> Result<Vec<f32>> {
        self.pass = pass;
        self.rows = vec![RowState::new(self.pass.tokens.len(), self.model.kv())];
        self.buffers.put(from, value.to_vec());
        let range = ops[0]..ops[ops.len() - 1] + 1;
        let walked = self.walk(&mut [job], Walk { ops: range, only: Some(ops), keep: Some(to), last: true }, kept);
        self.rows.clear();
        walked?;
        self.take(to)
    }

    /// Takes the value of an edge to the host.
    fn take(&mut self, edge: EdgeId) -> Result<Vec<f32>> {
        let memory = self.model.backend().memory();
        let value = self.buffers.take(edge, memory)?;
        if memory.is_some() {
            self.moved.waits += 1;
            self.moved.to_host += 4 * value.len();
        }
        Ok(value)
    }

    /// Begins an empty pass.
    pub fn begin(&mut self) {
        self.pass.clear();
        self.rows.clear();
    }

    /// Adds tokens of rows to the pass, at the given position or where the row has come to.
    pub fn pack<'t>(&mut self, jobs: &mut [&mut Job], parts: impl Iterator<Item = (RowTokens<'t>, Option<usize>)>) {
        let program = self.model.program();
        for (part, position) in parts {
            let job = &mut *jobs[part.job];
            let position = position.unwrap_or(job.rows[part.row].len);
            self.pass.add(program, (part.job, job), part.row, position, part.tokens);
            self.rows.push(std::mem::take(&mut job.rows[part.row]));
        }
    }

    /// Prepares for a pass that will grow to `tokens` tokens: its buffers get capacity for all of them.
    pub fn expect_tokens(&mut self, tokens: usize) {
        self.arena.expect(tokens as f64 / self.pass.tokens.len() as f64);
    }

    /// Adds the values of rows that have joined the pass to an edge.
    pub fn extend_edge(&mut self, edge: EdgeId, more: Value) {
        self.buffers.extend(edge, more, self.model.backend().memory());
    }

    /// Walks some ops of the list. This is the one loop over ops of the forward pass.
    pub fn walk(&mut self, jobs: &mut [&mut Job], walk: Walk, kept: Option<&mut KeptValues>) -> Result<()> {
        let Executor { model, watch, pass, rows, arena, buffers, moved } = self;
        let (program, backend) = (model.program(), model.backend());
        let frame = Frame::new(program, model.weights(), model.pool(), pass, rows, arena, buffers);
        let mut frame = frame.on(backend.memory());
        frame.prepare(program.architecture());
        let mut kept = kept;
        if let Some(kept) = &mut kept {
            kept.begin(pass, frame.rotations());
        }
        let mut frame = frame.keeping(kept);
        let mut taps = Taps { ops: model, jobs };
        let mut listed = walk.only.map(|ops| ops.iter().copied().peekable());
        let mut index = walk.ops.start;
        while index < walk.ops.end {
            if listed.as_mut().is_some_and(|listed| listed.next_if_eq(&index).is_none()) {
                index += 1;
                continue;
            }
            watch.check()?;
            if let Some(layer) = skipped_layer(program, &taps, index) {
                index = skip_layer(&mut frame, &mut taps, layer)?;
                continue;
            }
            frame.mark_absent(&taps, index);
            // On the host taps run in the middle of an op, so the question is only put to a device.
            let tapped_inside = backend.memory().is_some() && taps.touch_inside(program, index);
            if backend.runs(&program.ops()[index].kind, tapped_inside) {
                backend.execute(index, &mut frame, &mut taps)?;
            } else {
                frame.fall_back(index)?;
                Cpu.execute(index, &mut frame, &mut taps)?;
            }
            frame.free_dead_edges(index, &mut taps, walk.keep);
            let op = &program.ops()[index];
            if let (OpKind::Attention { .. }, Some(layer)) = (&op.kind, op.layer) {
                frame.free_kv(layer);
            }
            index += 1;
        }
        if walk.last {
            frame.free_all_but(walk.keep, &mut taps);
        }
        *moved += frame.moved;
        Ok(())
    }

    /// Ends the pass: gives the rows back to their jobs, one pass further.
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
    let site = |point| program.edge_of(Site::layer(layer, point)).expect("every layer has both ends of its stream");
    frame.copy_edge(site(Point::ResidPre), site(Point::ResidPost), taps)?;
    Ok(program.layer_ops(layer).end)
}
