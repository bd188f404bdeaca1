//! Captures of a job, and the values that its rows stash for taps on other rows.

use super::capture_buffer::{AttentionLine, CaptureAllocator, CaptureBuffer, LiveCapture};
use super::capture_options::CaptureOptions;
use super::pass::Pass;
use crate::array::Array;
use crate::error::Result;
use crate::memory::{DeviceMemory, DeviceValue, TransferStats, Value};
use crate::plan::{
    Capture, CompiledAction, CompiledPlan, CompiledReduce, CompiledTap, Condition, Consequence, Mark,
    SelectedPositions, ValueId,
};
use crate::program::{Edge, Program};
use crate::sae::ActiveFeatures;
use crate::value::{OpRunner, ValueStore};
use pellucid_kernels::Pool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value saved by a run.
#[derive(Clone, Debug)]
pub struct SavedValue {
    /// The value of the plan.
    pub value: ValueId,
    /// The row it belongs to; `None` for a value of all rows.
    pub row: Option<usize>,
    /// The generation step that computed it; 0 is the prompt.
    pub step: usize,
    /// The array.
    pub array: Array,
}

/// The values of a job, shared with its backward passes. One thread at a time uses a job, so the
/// lock is never contended.
#[derive(Clone, Default)]
pub(crate) struct SharedStore(Arc<Mutex<ValueStore>>);

impl SharedStore {
    pub fn lock(&self) -> MutexGuard<'_, ValueStore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unfinished captures, stashed sources and values.
pub(crate) struct Collector {
    /// By tap, then by row.
    captures: Vec<Vec<Option<CaptureBuffer>>>,
    /// By source and row, one vector per selected position.
    stash: HashMap<(usize, usize), Vec<Option<Vec<f32>>>>,
    /// Sources in device memory, by source and row: for each selected position its buffer and line.
    stash_on_device: HashMap<(usize, usize), Vec<Option<DeviceLine>>>,
    /// Captures in device memory, in the order in which they were taken.
    on_device: Vec<DeviceCapture>,
    /// Every row is computed in a single pass.
    single_pass: bool,
    store: SharedStore,
    saved: Vec<SavedValue>,
    step: usize,
    /// By tap, then by row: for each selected position whether the condition holds there.
    conditions: Vec<Vec<Vec<bool>>>,
    marks: Vec<Mark>,
    /// Rows that a condition has stopped.
    stopped: Vec<bool>,
}

/// A line of a buffer in device memory.
pub(crate) type DeviceLine = (DeviceValue, usize);

/// A capture that is still in device memory.
enum DeviceCapture {
    /// Selected lines of one row, with their indices in the selection.
    Lines { entry: usize, row: usize, indices: Vec<usize>, value: DeviceValue },
    /// A whole buffer, and for each row `(row, first token, token count)`.
    Whole { entry: usize, rows: Vec<(usize, usize, usize)>, value: DeviceValue },
}

impl DeviceCapture {
    fn value(&self) -> &DeviceValue {
        match self {
            DeviceCapture::Lines { value, .. } | DeviceCapture::Whole { value, .. } => value,
        }
    }
}

impl Collector {
    /// Allocates the memory of all captures, for all positions that their rows may reach.
    pub fn new(
        program: &Program,
        compiled: &CompiledPlan,
        single_pass: bool,
        options: &CaptureOptions,
    ) -> Result<Collector> {
        let single_pass = single_pass && options.allows_zero_copy();
        let mut allocator = CaptureAllocator::new(program, compiled, options)?;
        let mut of_tap = |(index, entry): (usize, &CompiledTap)| -> Vec<Option<CaptureBuffer>> {
            let CompiledAction::Capture(reduce) = &entry.action else { return Vec::new() };
            // A whole capture of a single pass takes over the op's buffer: allocate nothing.
            let takes_buffer = single_pass
                && entry.whole
                && matches!(reduce, CompiledReduce::Whole)
                && compiled.at_edge[entry.edge].last() == Some(&index);
            let edge = program.edge(entry.edge);
            let mut allocate = |(row, chosen): (usize, &Option<SelectedPositions>)| {
                let chosen = chosen.as_ref().filter(|_| !takes_buffer)?;
                Some(CaptureBuffer::new(&mut allocator, edge, entry, reduce, chosen, row))
            };
            entry.rows.iter().enumerate().map(&mut allocate).collect()
        };
        let captures = compiled.taps.iter().enumerate().map(&mut of_tap).collect();
        let flags = |entry: &CompiledTap| match &entry.action {
            CompiledAction::Condition(condition) if condition.then == Consequence::Apply => {
                let of_row = |chosen: &Option<SelectedPositions>| vec![false; chosen.as_ref().map_or(0, |c| c.len())];
                entry.rows.iter().map(of_row).collect()
            }
            _ => Vec::new(),
        };
        let conditions = if compiled.taps.iter().any(|entry| entry.condition.is_some()) {
            compiled.taps.iter().map(flags).collect()
        } else {
            Vec::new()
        };
        Ok(Collector {
            captures,
            stash: HashMap::new(),
            stash_on_device: HashMap::new(),
            on_device: Vec::new(),
            single_pass,
            store: SharedStore::default(),
            saved: Vec::new(),
            step: 0,
            conditions,
            marks: Vec::new(),
            stopped: vec![false; compiled.prompts.len()],
        })
    }

    /// The captures that other threads may read while the job runs.
    pub fn live_captures(&self) -> Arc<[Arc<LiveCapture>]> {
        self.captures.iter().flatten().flatten().filter_map(CaptureBuffer::live).collect()
    }

    pub fn takes_buffers(&self) -> bool {
        self.single_pass
    }

    /// Takes over a whole buffer and divides it among the rows of its pass.
    pub fn hand_over(&mut self, index: usize, entry: &CompiledTap, edge: &Edge, pass: &Pass, value: Value) {
        let rows = pass.segments.iter().map(|segment| {
            let tokens = pass.range(edge.token_set, segment);
            (segment.row, tokens.start, tokens.len())
        });
        match value {
            Value::Host(value) => self.share(index, entry, edge, rows, value),
            Value::Device(value) => {
                self.on_device.push(DeviceCapture::Whole { entry: index, rows: rows.collect(), value })
            }
        }
    }

    /// Gives each row a view of its tokens in a whole buffer.
    fn share(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        edge: &Edge,
        rows: impl Iterator<Item = (usize, usize, usize)>,
        value: Vec<f32>,
    ) {
        let value = Arc::new(value);
        for (row, first, count) in rows {
            let shape = entry.columns.shape(edge, count);
            let array = Array::view(shape, value.clone(), first * edge.width).with_integer(edge.integer);
            self.captures[index][row] = Some(CaptureBuffer::Buffer(array));
        }
    }

    /// Adds a gathered or reduced capture of a row in device memory.
    pub fn collect_on_device(&mut self, index: usize, row: usize, indices: Vec<usize>, value: DeviceValue) {
        self.on_device.push(DeviceCapture::Lines { entry: index, row, indices, value });
    }

    /// Stashes lines in device memory that other taps will read.
    pub fn stash_on_device(
        &mut self,
        source: usize,
        row: usize,
        indices: impl Iterator<Item = usize>,
        count: usize,
        lines: &DeviceValue,
    ) {
        let stash = self.stash_on_device.entry((source, row)).or_insert_with(|| vec![None; count]);
        indices.enumerate().for_each(|(line, nth)| stash[nth] = Some((lines.clone(), line)));
    }

    /// The stashed line in device memory for the `nth` selected position, or the only one.
    pub fn stashed_on_device(&self, source: usize, row: usize, nth: usize) -> Option<DeviceLine> {
        let lines = self.stash_on_device.get(&(source, row))?;
        lines.get(if lines.len() == 1 { 0 } else { nth })?.clone()
    }

    /// Downloads all captures at once.
    fn download_captures(
        &mut self,
        program: &Program,
        compiled: &CompiledPlan,
        memory: Option<&dyn DeviceMemory>,
        moved: &mut TransferStats,
    ) -> Result<()> {
        let Some(memory) = memory.filter(|_| !self.on_device.is_empty()) else { return Ok(()) };
        let pending = std::mem::take(&mut self.on_device);
        let floats = memory.download(&pending.iter().map(DeviceCapture::value).collect::<Vec<_>>())?;
        moved.waits += 1;
        moved.to_host += 4 * floats.iter().map(Vec::len).sum::<usize>();
        for (capture, floats) in pending.into_iter().zip(floats) {
            match capture {
                DeviceCapture::Whole { entry: index, rows, .. } => {
                    let entry = &compiled.taps[index];
                    self.share(index, entry, program.edge(entry.edge), rows.into_iter(), floats);
                }
                DeviceCapture::Lines { entry: index, row, indices, .. } => {
                    let CompiledAction::Capture(reduce) = &compiled.taps[index].action else { continue };
                    let Some(buffer) = &mut self.captures[index][row] else { continue };
                    let width = floats.len() / indices.len().max(1);
                    for (nth, line) in indices.into_iter().zip(floats.chunks_exact(width.max(1))) {
                        match reduce {
                            CompiledReduce::Norm | CompiledReduce::Dot(_) => buffer.set_scalar(nth, line[0]),
                            CompiledReduce::Whole
                            | CompiledReduce::Mean
                            | CompiledReduce::TopK { .. }
                            | CompiledReduce::Sparse(_) => buffer.add(reduce, nth, line),
                            CompiledReduce::Project(matrix) => buffer.project(&Pool::new(1), matrix, line, &[nth]),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds tokens of one row to a capture, each with its index in the selection. Whole tokens are
    /// not copied first.
    pub fn collect<'t>(
        &mut self,
        pool: &Pool,
        (index, row): (usize, usize),
        entry: &CompiledTap,
        tokens: impl Iterator<Item = (&'t [f32], usize)>,
    ) {
        let CompiledAction::Capture(reduce) = &entry.action else { return };
        let conditions = entry.condition.map(|condition| &self.conditions[condition][row]);
        let Some(buffer) = &mut self.captures[index][row] else { return };
        let tokens = tokens.filter(|&(_, nth)| conditions.is_none_or(|holds| holds[nth]));
        if let CompiledReduce::Project(matrix) = reduce {
            // One product for all tokens reads the vectors once.
            let (mut gathered, mut indices) = (Vec::new(), Vec::new());
            for (token, nth) in tokens {
                entry.columns.gather(token, &mut gathered);
                indices.push(nth);
            }
            buffer.project(pool, matrix, &gathered, &indices);
            return;
        }
        let mut scratch = Vec::new();
        for (token, nth) in tokens {
            buffer.add(reduce, nth, entry.columns.pick(token, &mut scratch));
        }
    }

    /// Adds the selected experts of one token of a row, at the `nth` selected position, to a
    /// capture.
    pub fn collect_experts(&mut self, (index, row): (usize, usize), entry: &CompiledTap, nth: usize, experts: &[f32]) {
        let CompiledAction::Capture(reduce) = &entry.action else { return };
        if self.applies(entry, row, nth)
            && let Some(buffer) = &mut self.captures[index][row]
        {
            buffer.add(reduce, nth, experts);
        }
    }

    /// Adds the active features of one token of a row to a sparse capture.
    pub fn collect_active(
        &mut self,
        index: usize,
        row: usize,
        entry: &CompiledTap,
        nth: usize,
        active: &ActiveFeatures,
    ) {
        if self.applies(entry, row, nth)
            && let Some(buffer) = &mut self.captures[index][row]
        {
            buffer.add_active(nth, active);
        }
    }

    pub fn collect_attention(&mut self, index: usize, row: usize, nth: usize, line: AttentionLine) {
        if let Some(buffer) = &mut self.captures[index][row] {
            buffer.set_query(nth, line);
        }
    }

    /// Tests a condition at one token of a row and stores the outcome.
    pub fn test(
        &mut self,
        index: usize,
        entry: &CompiledTap,
        condition: &Condition,
        (row, position, nth): (usize, usize, usize),
        token: &[f32],
    ) {
        let Some(value) = condition.test(token) else { return };
        match &condition.then {
            Consequence::Apply => self.conditions[index][row][nth] = true,
            Consequence::Stop => self.stopped[row] = true,
            Consequence::Mark(name) => {
                let (tap, site, name) = (entry.tap, entry.site, name.clone());
                self.marks.push(Mark { name, tap, site, row, position, value });
            }
        }
    }

    /// Whether a tap applies at a selected position: it has no condition, or the condition holds.
    pub fn applies(&self, entry: &CompiledTap, row: usize, nth: usize) -> bool {
        entry.condition.is_none_or(|condition| self.conditions[condition][row][nth])
    }

    /// Whether a condition has stopped a row.
    pub fn is_stopped(&self, row: usize) -> bool {
        self.stopped[row]
    }

    /// Takes the marks, ordered by tap, row and position.
    pub fn take_marks(&mut self) -> Vec<Mark> {
        let mut marks = std::mem::take(&mut self.marks);
        marks.sort_by_key(|mark| (mark.tap, mark.site, mark.row, mark.position));
        marks
    }

    /// Binds an array that a tap has read from a row to the plan values that read it.
    pub fn bind(&mut self, compiled: &CompiledPlan, entry: &CompiledTap, row: usize, array: Array) {
        for &value in &entry.binds {
            self.store.lock().bind(&compiled.values, value, row, array.clone());
        }
    }

    /// Computes a value for the row that uses it.
    pub fn value(
        &mut self,
        ops: &dyn OpRunner,
        compiled: &CompiledPlan,
        value: ValueId,
        reader: Option<usize>,
    ) -> Result<Array> {
        self.store.lock().get(ops, compiled, value, reader)
    }

    /// The values, shared with a backward pass.
    pub fn store(&self) -> SharedStore {
        self.store.clone()
    }

    /// Stores the saved values that depend on the gradient of a metric.
    pub fn end_gradient(&mut self, ops: &dyn OpRunner, compiled: &CompiledPlan, metric: usize) -> Result<()> {
        let values = &compiled.values;
        for &value in values.save.iter().filter(|&&value| values.gradient_of[value] == Some(metric)) {
            for row in values.rows[value].each() {
                let array = self.value(ops, compiled, value, row)?;
                self.saved.push(SavedValue { value, row, step: 0, array });
            }
        }
        Ok(())
    }

    /// Stores the saved values that the current step has computed. Rows in `ended` take no part in
    /// the next step.
    pub fn end_step(&mut self, ops: &dyn OpRunner, compiled: &CompiledPlan, ended: &[usize]) -> Result<()> {
        let values = &compiled.values;
        for &value in values.save.iter().filter(|&&value| values.gradient_of[value].is_none()) {
            if !self.store.lock().is_new(values, value) {
                continue;
            }
            for row in values.rows[value].each() {
                if row.is_none_or(|row| self.store.lock().is_alive(row)) {
                    let array = self.store.lock().get(ops, compiled, value, row)?;
                    self.saved.push(SavedValue { value, row, step: self.step, array });
                }
            }
        }
        self.step += 1;
        self.store.lock().next_step(ended);
        Ok(())
    }

    /// Takes the saved values, ordered by step and plan.
    pub fn take_saved(&mut self) -> Vec<SavedValue> {
        std::mem::take(&mut self.saved)
    }

    pub fn stash(&mut self, source: usize, row: usize, nth: usize, count: usize, values: Vec<f32>) {
        self.stash.entry((source, row)).or_insert_with(|| vec![None; count])[nth] = Some(values);
    }

    /// The stashed vector for the `nth` selected position, or the only one.
    pub fn stashed(&self, source: usize, row: usize, nth: usize) -> Option<&[f32]> {
        let values = self.stash.get(&(source, row))?;
        let nth = if values.len() == 1 { 0 } else { nth };
        values.get(nth)?.as_deref()
    }

    /// Returns the captures in plan order, downloading those in device memory, which is added to
    /// `moved`. `lengths` are the computed positions of the rows.
    pub fn finish(
        mut self,
        program: &Program,
        compiled: &CompiledPlan,
        lengths: &[usize],
        memory: Option<&dyn DeviceMemory>,
        moved: &mut TransferStats,
    ) -> Result<Vec<Capture>> {
        self.download_captures(program, compiled, memory, moved)?;
        let mut captures = Vec::new();
        for (index, entry) in compiled.taps.iter().enumerate() {
            let CompiledAction::Capture(_) = &entry.action else { continue };
            for (row, chosen) in entry.rows.iter().enumerate() {
                let (Some(chosen), Some(buffer)) = (chosen, self.captures[index][row].take()) else { continue };
                let holds = entry.condition.map(|condition| &self.conditions[condition][row]);
                let mut computed = chosen.positions();
                let mut nth = 0..;
                computed.retain(|&position| {
                    let nth = nth.next().unwrap_or_default();
                    position < lengths[row] && holds.is_none_or(|holds| holds[nth])
                });
                captures.push(buffer.finish(program.edge(entry.edge), entry, computed, row, lengths[row])?);
            }
        }
        Ok(captures)
    }
}
