//! A call under way: passes of tokens walk the op list.

use super::frame::{Arena, Buffers, Frame};
use super::pass::{Pass, RowState, Wanted};
use super::{Collector, Model, Taps};
use crate::backend::Backend;
use crate::error::Result;
use crate::grad::{self, Cotangents, Tape, TapsBack};
use crate::interrupt::Watch;
use crate::plan::{Capture, Compiled};
use crate::point::Point;
use crate::program::{EdgeId, OpKind};
use crate::site::Site;

/// What comes after the prompts of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// Somebody takes the rows' keys and values.
    Keys,
    /// Steps of a generation.
    Steps,
}

/// A call under way: the state of its rows and what has been collected.
pub(crate) struct Call<'a> {
    model: &'a Model,
    compiled: &'a Compiled,
    prompts: &'a [usize],
    chunk: usize,
    after: After,
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
        after: After,
    ) -> Call<'a> {
        // Sources and values may lie anywhere in a row, so a plan that has some takes each prompt whole.
        let apart = compiled.sources.is_empty() && compiled.values.list.is_empty();
        let chunk = chunk.filter(|_| apart).unwrap_or(usize::MAX).max(1);
        let whole = prompts.iter().all(|&prompt| prompt <= chunk);
        let keeps_keys = after != After::Nothing || !whole;
        let row = |&prompt: &usize| RowState { keeps_keys, ..RowState::new(prompt, model.kv) };
        let rows = prompts.iter().map(row).collect();
        let collector = Collector::new(compiled, after != After::Steps && whole);
        Call {
            model,
            compiled,
            prompts,
            chunk,
            after,
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
    pub fn gradients(&mut self, tapes: &[Tape]) -> Result<Vec<Capture>> {
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
        let (compiled, prompts) = (self.compiled, self.prompts);
        // A plain run computes the last MLP everywhere: what may be looked at should not cost more for being looked at.
        let late_everywhere = self.after != After::Steps && tape.is_none();
        let (also, also_late) = tape.as_ref().map_or((&[][..], &[][..]), |tape| (&tape.reads, &tape.reads_late));
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
