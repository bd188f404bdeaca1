//! The edges alive in a pass.

use super::arena::download_one;
use super::{Arena, Buffers, KeptValues, Taps};
use crate::architecture::Architecture;
use crate::error::Result;
use crate::job::{Pass, RowState, Segment};
use crate::memory::{DeviceMemory, DeviceValue, Moved, Selection, TapWork, Value};
use crate::program::{EdgeId, OpKind, Program};
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::{AttentionShape, KvStore};

/// What an op sees: the pass, the weights, the rows' caches and the edges alive.
pub struct Frame<'a> {
    /// The program that runs.
    pub program: &'a Program,
    /// Its weights.
    pub weights: &'a Weights,
    /// The threads.
    pub pool: &'a Pool,
    /// The tokens.
    pub pass: &'a Pass,
    /// The states of the rows in the pass, one for each segment.
    pub rows: &'a mut [RowState],
    arena: &'a mut Arena,
    buffers: &'a mut Buffers,
    /// Takes values that are needed after the pass: by a backward pass or by branches.
    kept: Option<&'a mut KeptValues>,
    /// The memory of a backend that has one of its own.
    memory: Option<&'a dyn DeviceMemory>,
    /// What moved between host and device.
    pub(crate) moved: Moved,
    /// For each segment whether its row stays out of the op under way; empty if none does.
    pub(crate) absent: Vec<bool>,
}

impl<'a> Frame<'a> {
    pub(crate) fn new(
        program: &'a Program,
        weights: &'a Weights,
        pool: &'a Pool,
        pass: &'a Pass,
        rows: &'a mut [RowState],
        arena: &'a mut Arena,
        buffers: &'a mut Buffers,
    ) -> Frame<'a> {
        let (moved, absent) = (Moved::default(), Vec::new());
        Frame { program, weights, pool, pass, rows, arena, buffers, kept: None, memory: None, moved, absent }
    }

    /// The frame of a backend with memory of its own.
    pub(crate) fn on(self, memory: Option<&'a dyn DeviceMemory>) -> Frame<'a> {
        Frame { memory, ..self }
    }

    /// The frame with values that are kept after the pass.
    pub(crate) fn keeping(self, kept: Option<&'a mut KeptValues>) -> Frame<'a> {
        Frame { kept, ..self }
    }

    /// Computes the pass's rotations, once for all layers.
    pub(crate) fn prepare(&mut self, architecture: &Architecture) {
        for (rope, (cos, sin)) in architecture.ropes.iter().zip(&mut self.buffers.rotations) {
            cos.clear();
            sin.clear();
            for segment in &self.pass.segments {
                for position in segment.position..segment.position + segment.count {
                    // A row's length when a token is computed: its prompt, or what was generated since.
                    let length = self.rows[segment.slot].prompt.max(position + 1);
                    let amplitude = rope.amplitude_at(length);
                    for frequency in rope.at_length(length).iter() {
                        // The angle in f32, as the reference has it; its functions in f64 are exact enough not to matter.
                        let angle = (position as f32 * frequency) as f64;
                        cos.push(angle.cos() as f32 * amplitude);
                        sin.push(angle.sin() as f32 * amplitude);
                    }
                }
            }
        }
    }

    /// The rotations of all rotary embeddings.
    pub(crate) fn rotations(&self) -> &[(Vec<f32>, Vec<f32>)] {
        &self.buffers.rotations
    }

    /// Cosines and sines of a rotary embedding, `[tokens, frequencies]`.
    pub fn rotation(&self, rope: usize) -> (&[f32], &[f32]) {
        let (cos, sin) = &self.buffers.rotations[rope];
        (cos, sin)
    }

    /// The value on an edge, in host memory.
    pub fn value(&self, edge: EdgeId) -> &[f32] {
        match &self.buffers.values[edge] {
            Some(Value::Host(value)) => value,
            Some(Value::Device(_)) => unreachable!("the executor moves the inputs of an op on the CPU to the host"),
            None => &[],
        }
    }

    /// The value on an edge, in the backend's memory; it moves there if it is not.
    pub fn device(&mut self, edge: EdgeId) -> Option<DeviceValue> {
        if let Some(Value::Host(value)) = &self.buffers.values[edge] {
            self.moved.to_device += 4 * value.len();
            self.buffers.values[edge] = Some(Value::Device(self.memory?.upload(value)));
        }
        match &self.buffers.values[edge] {
            Some(Value::Device(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Moves a value to host memory.
    pub(crate) fn move_to_host(&mut self, edge: EdgeId) -> Result<()> {
        if let Some(Value::Device(value)) = &self.buffers.values[edge] {
            self.moved.to_host += 4 * value.len();
            self.moved.waits += 1;
            self.buffers.values[edge] = Some(Value::Host(download_one(self.memory, value)?));
        }
        Ok(())
    }

    /// Notes which rows stay out of op `index`; only jobs that share a pass can differ in that.
    pub(crate) fn mark_absent(&mut self, taps: &Taps, index: usize) {
        self.absent.clear();
        if taps.jobs.len() > 1 && taps.jobs.iter().any(|job| !job.runs(self.program, index)) {
            let absent = |segment: &Segment| !taps.jobs[segment.job].runs(self.program, index);
            self.absent.extend(self.pass.segments.iter().map(absent));
        }
    }

    /// Moves the inputs, KV caches and recurrent states of op `index` to the host: the backend lacks the op.
    pub(crate) fn fall_back(&mut self, index: usize) -> Result<()> {
        self.moved.fallbacks += 1;
        let op = &self.program.ops()[index];
        for edge in op.kind.inputs() {
            self.move_to_host(edge)?;
        }
        let (layers, ops) = (self.program.architecture().layers.len(), self.program.ops().len());
        for row in self.rows.iter_mut() {
            let Some(device) = &mut row.device else { continue };
            if let (OpKind::Attention { .. }, Some(layer)) = (&op.kind, op.layer)
                && let Some(kv) = device.take_kv(layer)
            {
                row.put_kv(layer, layers, kv);
            } else if op.kind.carries()
                && let Some(state) = device.take_state(index)
            {
                row.carried.resize_with(ops, Vec::new);
                row.carried[index] = state;
            }
        }
        Ok(())
    }

    /// Whether a segment's row stays out of the op under way: its job does not need the op, or skips its layer. Its KV cache and
    /// recurrent state must not change, and its outputs are not used.
    pub fn is_absent(&self, segment: &Segment) -> bool {
        self.absent.get(segment.slot).copied().unwrap_or(false)
    }

    /// Tokens on an edge.
    pub fn tokens(&self, edge: EdgeId) -> usize {
        self.pass.len(self.program.edge(edge).domain)
    }

    /// A buffer for an edge's value.
    pub fn make(&mut self, edge: EdgeId) -> Vec<f32> {
        let len = self.tokens(edge) * self.program.edge(edge).width;
        self.arena.take(len)
    }

    /// Room for `len` numbers of an op's own, whatever they are; [`Frame::give_back`] takes it.
    pub fn room(&mut self, len: usize) -> Vec<f32> {
        self.arena.take(len)
    }

    /// Takes back what [`Frame::room`] or [`Frame::copy`] gave.
    pub fn give_back(&mut self, room: Vec<f32>) {
        self.arena.give(room);
    }

    /// The list that segments are sorted out in, empty; to be put back when done.
    pub(crate) fn take_segments(&mut self) -> Vec<Segment> {
        let mut segments = std::mem::take(&mut self.buffers.segments);
        segments.clear();
        segments
    }

    pub(crate) fn put_segments(&mut self, segments: Vec<Segment>) {
        self.buffers.segments = segments;
    }

    /// A copy of an edge's value.
    pub fn copy(&mut self, edge: EdgeId) -> Vec<f32> {
        let value = self.take(edge);
        let mut copy = self.arena.take(value.len());
        copy.copy_from_slice(&value);
        self.buffers.values[edge] = Some(Value::Host(value));
        copy
    }

    /// A copy of the tokens of an edge's value that another edge has.
    pub fn select(&mut self, from: EdgeId, to: EdgeId) -> Vec<f32> {
        let mut selected = self.make(to);
        let (width, value) = (self.program.edge(to).width, self.value(from));
        let picks = self.pass.picks(self.program.edge(from).domain, self.program.edge(to).domain);
        for (token, place) in selected.chunks_exact_mut(width).zip(picks) {
            token.copy_from_slice(&value[place * width..][..width]);
        }
        selected
    }

    /// Whether op `reader` is the last to need an edge's value, so that it may write into it.
    pub fn is_free_after(&self, edge: EdgeId, reader: usize, taps: &Taps) -> bool {
        let kept = self.kept.as_ref().is_some_and(|kept| kept.keeps(edge));
        self.program.last_use(edge) == reader && !taps.keeps(edge) && !kept
    }

    /// An edge's value to change: the value itself when op `reader` is the last to need it, else a copy.
    pub fn reuse(&mut self, edge: EdgeId, reader: usize, taps: &Taps) -> Vec<f32> {
        if self.is_free_after(edge, reader, taps) { self.take(edge) } else { self.copy(edge) }
    }

    pub(crate) fn take(&mut self, edge: EdgeId) -> Vec<f32> {
        match self.buffers.values[edge].take() {
            Some(Value::Host(value)) => value,
            Some(Value::Device(_)) => unreachable!("the executor moves the inputs of an op on the CPU to the host"),
            None => Vec::new(),
        }
    }

    /// Copies the tokens of an edge that another edge has onto it, past all ops between: a skipped layer.
    pub(crate) fn copy_edge(&mut self, from: EdgeId, to: EdgeId, taps: &mut Taps) -> Result<()> {
        let (Some(Value::Device(value)), Some(memory)) = (&self.buffers.values[from], self.memory) else {
            let selected = self.select(from, to);
            return self.put(to, selected, taps);
        };
        let width = self.program.edge(to).width;
        let picks = self.pass.picks(self.program.edge(from).domain, self.program.edge(to).domain);
        let tokens: Vec<usize> = picks.collect();
        let columns = 0..width;
        let selection = Selection { width, tokens: &tokens, columns: std::slice::from_ref(&columns) };
        match memory.tap(value, &selection, &TapWork::Gather) {
            Some(copy) => self.put_device(to, copy, taps),
            None => Ok(()),
        }
    }

    /// Puts a value on its edge; the edge's taps see and change it first.
    pub fn put(&mut self, edge: EdgeId, mut value: Vec<f32>, taps: &mut Taps) -> Result<()> {
        if taps.touches(edge) {
            taps.apply(self.program, self.pass, edge, &mut value)?;
        }
        self.buffers.values[edge] = Some(Value::Host(value));
        Ok(())
    }

    /// Puts a value in the backend's memory on its edge; the edge's taps see and change it there first.
    pub fn put_device(&mut self, edge: EdgeId, value: DeviceValue, taps: &mut Taps) -> Result<()> {
        if let Some(memory) = self.memory.filter(|_| taps.touches(edge)) {
            taps.apply_on_device(self.program, self.pass, edge, &value, memory, &mut self.moved)?;
        }
        self.buffers.values[edge] = Some(Value::Device(value));
        Ok(())
    }

    /// Frees the edges whose last reader is op `index`, handing whole captures their buffer.
    pub(crate) fn free_dead_edges(&mut self, index: usize, taps: &mut Taps, keep: Option<EdgeId>) {
        let program = self.program;
        program.dies_at(index).iter().filter(|&&edge| Some(edge) != keep).for_each(|&edge| self.free(edge, taps));
    }

    /// Frees all edges that are left when the ops end, but one.
    pub(crate) fn free_all_but(&mut self, keep: Option<EdgeId>, taps: &mut Taps) {
        let edges = self.program.edge_ids().filter(|&edge| Some(edge) != keep);
        edges.for_each(|edge| self.free(edge, taps));
    }

    /// Whether unfused attention is kept for a backward pass.
    pub(crate) fn keeps_attention(&self) -> bool {
        self.kept.is_some()
    }

    /// Keeps one row's attention scores or probabilities as the taps left them.
    pub(crate) fn keep_attention(&mut self, edge: EdgeId, row: usize, value: Vec<f32>) {
        if let Some(kept) = &mut self.kept {
            kept.put_attention(edge, row, value);
        }
    }

    /// Takes the KV cache of a row and layer, with capacity for `capacity` positions at least; [`Frame::put_kv`] puts it back.
    pub(crate) fn take_kv(&mut self, slot: usize, layer: usize, shape: &AttentionShape, capacity: usize) -> KvStore {
        self.rows[slot].take_kv(layer, shape, capacity, |layout, capacity| self.arena.take_cache(layout, capacity))
    }

    /// Puts the KV cache of a row and layer back.
    pub(crate) fn put_kv(&mut self, slot: usize, layer: usize, kv: KvStore) {
        self.rows[slot].put_kv(layer, self.program.architecture().layers.len(), kv);
    }

    /// Frees a layer's KV cache of the rows that do not keep it: the next layer uses its memory.
    pub(crate) fn free_kv(&mut self, layer: usize) {
        let rows = self.rows.iter_mut().filter(|row| !row.keeps_kv);
        self.arena.give_caches(rows.filter_map(|row| row.free_kv(layer)));
    }

    /// Hands a value to the kept values and to its whole capture, if they want it, else to the arena.
    fn free(&mut self, edge: EdgeId, taps: &mut Taps) {
        let Some(value) = self.buffers.values[edge].take() else { return };
        let mut value = Some(value);
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.keeps(edge)) {
            let own = if taps.keeps(edge) { value.as_ref().map(Value::copy) } else { value.take() };
            own.into_iter().for_each(|own| kept.put(edge, own));
        }
        let left = value.and_then(|value| taps.hand_over(self.program, self.pass, edge, value));
        if let Some(Value::Host(buffer)) = left {
            self.arena.give(buffer);
        }
    }
}
