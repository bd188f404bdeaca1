//! Applies taps: each value put on an edge goes through the taps of the pass's jobs, in the order
//! of their plans.
//!
//! `edit.rs` applies one tap to one row's tokens, `attention.rs` does the same for attention scores
//! and probabilities, `device.rs` for values in device memory.

mod attention;
mod device;
mod edit;
mod sae;

pub(crate) use sae::{SaeOutput, SaeToken, sae_tokens};

use crate::error::Result;
use crate::job::{Job, Pass, Segment};
use crate::memory::{DeviceMemory, DeviceValue, TransferStats, Value};
use crate::plan::{Callback, CompiledAction, CompiledReduce, CompiledTap, SelectedPositions, SelectedRow};
use crate::program::{EdgeId, Program, TokenSet};
use crate::value::OpRunner;

/// The taps of the jobs whose rows are in a pass.
pub struct Taps<'a, 'j> {
    pub(crate) ops: &'a dyn OpRunner,
    pub(crate) jobs: &'a mut [&'j mut Job],
}

/// Attention scores or probabilities of one segment, `[heads, queries, keys]`.
pub struct AttentionRow {
    /// The queries.
    pub segment: Segment,
    /// `[heads, queries, keys]`; the keys are all positions up to the segment's last.
    pub values: Vec<f32>,
}

impl Taps<'_, '_> {
    /// Whether any tap reads or changes an edge.
    pub fn touches(&self, edge: EdgeId) -> bool {
        self.jobs.iter().any(|job| job.touches(edge))
    }

    /// Whether a tap touches an inner edge of an op, which is computed only for taps.
    pub fn touches_inside(&self, program: &Program, index: usize) -> bool {
        program.ops()[index].kind.tap_edges().iter().any(|&edge| self.touches(edge))
    }

    /// Whether a tap reads or changes an edge in a segment's row.
    pub fn touches_row(&self, edge: EdgeId, segment: &Segment) -> bool {
        self.jobs.get(segment.job).is_some_and(|job| job.touches_row(edge, segment.row))
    }

    /// Whether a tap changes an edge in a segment's row.
    pub fn edits_row(&self, edge: EdgeId, segment: &Segment) -> bool {
        self.jobs.get(segment.job).is_some_and(|job| job.edits_row(edge, segment.row))
    }

    /// Whether a tap on an edge may need several rows of the segment's job at once: a closure, or
    /// an edit that writes a computed value.
    pub fn needs_rows_together(&self, edge: EdgeId, segment: &Segment) -> bool {
        let Some(compiled) = self.jobs.get(segment.job).map(|job| &job.compiled) else { return false };
        let joins = |entry: &CompiledTap| matches!(entry.action, CompiledAction::Call(_)) || entry.value().is_some();
        compiled.at_edge[edge].iter().any(|&index| joins(&compiled.taps[index]))
    }

    /// Whether a capture will take over an edge's buffer, so that no op may overwrite it.
    pub(super) fn captures_whole(&self, edge: EdgeId) -> bool {
        self.whole_capture(edge).is_some()
    }

    /// The tap that takes over an edge's buffer: a whole capture that is the last tap of the edge.
    /// Several jobs share a buffer, so it is not handed over then.
    fn whole_capture(&self, edge: EdgeId) -> Option<usize> {
        let [job] = &self.jobs[..] else { return None };
        let last = *job.compiled.at_edge[edge].last().filter(|_| !job.replay)?;
        let entry = &job.compiled.taps[last];
        let whole = entry.whole && matches!(entry.action, CompiledAction::Capture(CompiledReduce::Whole));
        (whole && job.collector.takes_buffers()).then_some(last)
    }

    /// Hands a dead value to its whole capture; returns it if there is none.
    pub(super) fn hand_over(&mut self, program: &Program, pass: &Pass, edge: EdgeId, value: Value) -> Option<Value> {
        match self.whole_capture(edge) {
            Some(index) => {
                let job = &mut self.jobs[0];
                job.collector.hand_over(index, &job.compiled.taps[index], program.edge(edge), pass, value);
                None
            }
            None => Some(value),
        }
    }

    /// Whether a tap selects slots of an edge by their expert.
    pub(super) fn selects_experts(&self, edge: EdgeId) -> bool {
        let selects = |job: &Job| {
            let compiled = &job.compiled;
            compiled.at_edge[edge].iter().any(|&index| compiled.taps[index].experts.is_some())
        };
        self.jobs.iter().any(|job| selects(job))
    }

    /// Applies the taps of an edge to its value, `[tokens, width]`, job by job and tap by tap.
    /// `choices` are the chosen experts behind the edge's slots, if it has slots.
    pub fn apply(
        &mut self,
        program: &Program,
        pass: &Pass,
        edge: EdgeId,
        value: &mut [f32],
        choices: &[f32],
    ) -> Result<()> {
        let handed_over = self.whole_capture(edge);
        for index in 0..self.jobs.len() {
            let job = &mut *self.jobs[index];
            if job.touches(edge) && job.failure.is_none() {
                let mut taps = JobTaps { program, ops: self.ops, job };
                let outcome = taps.apply(pass, pass.segments_of(index), edge, handed_over, value, choices);
                self.record_failure(index, outcome)?;
            }
        }
        Ok(())
    }

    /// Applies the taps of an edge between layers to its value, on the host or the device.
    pub(crate) fn apply_to(
        &mut self,
        program: &Program,
        pass: &Pass,
        edge: EdgeId,
        mut value: Value,
        memory: Option<&dyn DeviceMemory>,
    ) -> Result<Value> {
        match (&mut value, memory) {
            (Value::Device(value), Some(memory)) => {
                let mut device = Device { memory, moved: &mut TransferStats::default() };
                self.apply_on_device((program, pass), edge, value, &[], &mut device)?
            }
            (Value::Host(value), _) => self.apply(program, pass, edge, value, &[])?,
            (Value::Device(_), None) => unreachable!("only a backend with device memory creates device values"),
        }
        Ok(value)
    }

    /// Applies the taps of an edge to its value in device memory; `choices` as in
    /// [`apply`](Self::apply).
    pub(super) fn apply_on_device(
        &mut self,
        (program, pass): (&Program, &Pass),
        edge: EdgeId,
        value: &DeviceValue,
        choices: &[f32],
        device: &mut Device,
    ) -> Result<()> {
        let handed_over = self.whole_capture(edge);
        for index in 0..self.jobs.len() {
            let job = &mut *self.jobs[index];
            if job.touches(edge) && job.failure.is_none() {
                let mut taps = JobTaps { program, ops: self.ops, job };
                let outcome =
                    taps.apply_on_device((pass, pass.segments_of(index)), edge, handed_over, value, choices, device);
                self.record_failure(index, outcome)?;
            }
        }
        Ok(())
    }

    /// Applies the taps of an attention edge to the rows whose attention runs unfused, job by job
    /// and tap by tap.
    pub fn apply_attention(&mut self, program: &Program, edge: EdgeId, rows: &mut [AttentionRow]) -> Result<()> {
        for rows in rows.chunk_by_mut(|a, b| a.segment.job == b.segment.job) {
            let index = rows[0].segment.job;
            let job = &mut *self.jobs[index];
            if job.touches(edge) && job.failure.is_none() {
                let mut taps = JobTaps { program, ops: self.ops, job };
                let outcome = taps.apply_attention(edge, rows);
                self.record_failure(index, outcome)?;
            }
        }
        Ok(())
    }

    /// With one job in the pass, a failing tap ends the pass. With several, the error is stored in
    /// its job and the others continue.
    fn record_failure(&mut self, job: usize, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if self.jobs.len() > 1 => {
                self.jobs[job].failure = Some(error);
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Applies the taps of one job.
struct JobTaps<'a> {
    program: &'a Program,
    ops: &'a dyn OpRunner,
    job: &'a mut Job,
}

/// Device memory, with the transfer counters.
pub(super) struct Device<'a> {
    pub memory: &'a dyn DeviceMemory,
    pub moved: &'a mut TransferStats,
}

/// A selected token: its index on the edge, its position in the row, its index in the selection.
type SelectedToken = (usize, usize, usize);

impl JobTaps<'_> {
    /// Applies the taps of an edge, each to all segments of the job; then stashes the values that
    /// other taps read from the edge.
    fn apply(
        &mut self,
        pass: &Pass,
        segments: &[Segment],
        edge: EdgeId,
        handed_over: Option<usize>,
        value: &mut [f32],
        choices: &[f32],
    ) -> Result<()> {
        let (compiled, spec) = (self.job.compiled.clone(), self.program.edge(edge));
        for &index in &compiled.at_edge[edge] {
            let entry = &compiled.taps[index];
            if Some(index) == handed_over || self.job.ignores(entry) {
                continue;
            }
            if let CompiledAction::Call(callback) = &entry.action {
                self.call(entry, callback, pass, segments, value)?;
                continue;
            }
            // The op of an autoencoder has applied it.
            if let CompiledAction::Splice(_) = &entry.action {
                continue;
            }
            for segment in segments {
                let Some(chosen) = &entry.rows[segment.row] else { continue };
                let tokens = selected(pass, segment, spec.token_set, chosen);
                if let CompiledAction::Condition(condition) = &entry.action {
                    for (token, position, nth) in tokens {
                        let at = (segment.row, position, nth);
                        let token = &value[token * spec.width..][..spec.width];
                        self.job.collector.test(index, entry, condition, at, token);
                    }
                    continue;
                }
                if let (CompiledAction::Capture(_), Some(experts)) = (&entry.action, &entry.experts) {
                    let mut picked = Vec::with_capacity(entry.captured_len());
                    for (token, _, nth) in tokens {
                        picked.clear();
                        let elements = &value[token * spec.width..][..spec.width];
                        experts.gather(&entry.columns, choices, token, elements, &mut picked);
                        self.job.collector.collect_experts((index, segment.row), entry, nth, &picked);
                    }
                    continue;
                }
                if let CompiledAction::Capture(_) = &entry.action {
                    let tokens = tokens.map(|(token, _, nth)| (&value[token * spec.width..][..spec.width], nth));
                    self.job.collector.collect(self.ops.pool(), (index, segment.row), entry, tokens);
                    continue;
                }
                let tokens: Vec<SelectedToken> = tokens.collect();
                self.apply_row(entry, segment.row, &tokens, value, choices)?;
            }
        }
        for &index in compiled.sources_at[edge].iter().filter(|_| !self.job.replay) {
            let source = &compiled.sources[index];
            for segment in segments {
                let Some(chosen) = &source.rows[segment.row] else { continue };
                for (token, _, nth) in selected(pass, segment, spec.token_set, chosen) {
                    let mut values = Vec::with_capacity(source.columns.len());
                    source.columns.gather(&value[token * spec.width..][..spec.width], &mut values);
                    self.job.collector.stash(index, segment.row, nth, chosen.len(), values);
                }
            }
        }
        Ok(())
    }

    /// Calls a closure once with the selected values of all rows, and writes the changed values
    /// back.
    fn call(
        &self,
        entry: &CompiledTap,
        callback: &Callback,
        pass: &Pass,
        segments: &[Segment],
        value: &mut [f32],
    ) -> Result<()> {
        let spec = self.program.edge(entry.edge);
        let (mut tokens, mut gathered) = (Vec::new(), Vec::new());
        for segment in segments {
            let Some(chosen) = &entry.rows[segment.row] else { continue };
            let own: Vec<SelectedToken> = selected(pass, segment, spec.token_set, chosen).collect();
            if own.is_empty() {
                continue;
            }
            let mut values = Vec::with_capacity(own.len() * entry.columns.len());
            own.iter().for_each(|&(token, ..)| {
                entry.columns.gather(&value[token * spec.width..][..spec.width], &mut values);
            });
            let positions = own.iter().map(|&(_, position, _)| position).collect();
            gathered.push(SelectedRow { row: segment.row, positions, width: entry.columns.len(), values });
            tokens.push(own);
        }
        if gathered.is_empty() {
            return Ok(());
        }
        callback.call(entry, &mut gathered)?;
        for (own, gathered) in tokens.iter().zip(&gathered) {
            for (&(token, ..), values) in own.iter().zip(gathered.values.chunks_exact(entry.columns.len())) {
                entry.columns.scatter(values, &mut value[token * spec.width..][..spec.width]);
            }
        }
        Ok(())
    }
}

/// The tokens of a segment that a tap selects on an edge with this token set.
fn selected<'a>(
    pass: &'a Pass,
    segment: &'a Segment,
    token_set: TokenSet,
    chosen: &'a SelectedPositions,
) -> impl Iterator<Item = SelectedToken> + 'a {
    pass.segment_tokens(token_set, segment)
        .filter_map(|(token, position)| Some((token, position, chosen.index_of(position)?)))
}
