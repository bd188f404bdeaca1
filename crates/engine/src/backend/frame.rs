//! The live edges of a pass.

use super::arena::download_one;
use super::taps::Device;
use super::{Arena, Buffers, RetainedValues, Taps};
use crate::adapter::{Adapter, updates};
use crate::architecture::Architecture;
use crate::error::Result;
use crate::job::{Pass, RowState, Segment};
use crate::memory::{DeviceMemory, DeviceValue, Selection, TapWork, TransferStats, Value};
use crate::program::{EdgeId, OpKind, Program};
use crate::sae::{AttachedSae, LayerFeatures};
use crate::weights::{WeightId, Weights};
use pellucid_kernels::Pool;
use pellucid_kernels::attention::{AttentionShape, KvCache};
use std::sync::Arc;

/// The state an op runs on: the pass, the weights, the rows' KV caches and the live edges.
pub struct Frame<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its weights.
    pub weights: &'a Weights,
    /// The attached autoencoders.
    pub(crate) saes: &'a [AttachedSae],
    /// The attached adapters.
    pub(crate) adapters: &'a [Arc<Adapter>],
    /// The thread pool.
    pub pool: &'a Pool,
    /// The tokens of the pass.
    pub pass: &'a Pass,
    /// The row states, one per segment.
    pub rows: &'a mut [RowState],
    arena: &'a mut Arena,
    buffers: &'a mut Buffers,
    /// Receives the values that a backward pass or branches read after this pass.
    retained: Option<&'a mut RetainedValues>,
    /// The backend's device memory, if it has one.
    memory: Option<&'a dyn DeviceMemory>,
    /// Transfers between host and device so far.
    pub(crate) moved: TransferStats,
    /// For each segment whether its row skips the current op; empty if none does.
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
        let (moved, absent) = (TransferStats::default(), Vec::new());
        let (saes, adapters, retained, memory) = (&[][..], &[][..], None, None);
        Frame { program, weights, saes, adapters, pool, pass, rows, arena, buffers, retained, memory, moved, absent }
    }

    /// Sets the attached autoencoders.
    pub(crate) fn with_saes(self, saes: &'a [AttachedSae]) -> Frame<'a> {
        Frame { saes, ..self }
    }

    /// Sets the attached adapters.
    pub(crate) fn with_adapters(self, adapters: &'a [Arc<Adapter>]) -> Frame<'a> {
        Frame { adapters, ..self }
    }

    /// Sets the device memory.
    pub(crate) fn with_memory(self, memory: Option<&'a dyn DeviceMemory>) -> Frame<'a> {
        Frame { memory, ..self }
    }

    /// Sets the receiver of values that outlive the pass.
    pub(crate) fn with_retained(self, retained: Option<&'a mut RetainedValues>) -> Frame<'a> {
        Frame { retained, ..self }
    }

    /// Computes the rotary tables of the pass, once for all layers.
    pub(crate) fn prepare(&mut self, architecture: &Architecture) {
        for (rope, (cos, sin)) in architecture.ropes.iter().zip(&mut self.buffers.rotations) {
            cos.clear();
            sin.clear();
            for segment in &self.pass.segments {
                for position in segment.position..segment.position + segment.count {
                    // The row's length when this token is computed: the prompt's, or more while
                    // decoding.
                    let length = self.rows[segment.slot].prompt.max(position + 1);
                    let amplitude = rope.amplitude_at(length);
                    for frequency in rope.frequencies_at(length).iter() {
                        // The reference computes the angle in f32; cos and sin in f64 add no
                        // visible error.
                        let angle = (position as f32 * frequency) as f64;
                        cos.push(angle.cos() as f32 * amplitude);
                        sin.push(angle.sin() as f32 * amplitude);
                    }
                }
            }
        }
    }

    /// The `(cos, sin)` tables of all rotary embeddings.
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

    /// The value on an edge, wherever it is; `None` if it is not alive.
    pub(crate) fn stored(&self, edge: EdgeId) -> Option<&Value> {
        self.buffers.values[edge].as_ref()
    }

    /// The value on an edge in device memory, uploaded if necessary.
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

    /// Marks the rows that skip op `index`. Rows differ only if several jobs share the pass.
    pub(crate) fn mark_absent(&mut self, taps: &Taps, index: usize) {
        self.absent.clear();
        if taps.jobs.len() > 1 && taps.jobs.iter().any(|job| !job.runs(self.program, index)) {
            let absent = |segment: &Segment| !taps.jobs[segment.job].runs(self.program, index);
            self.absent.extend(self.pass.segments.iter().map(absent));
        }
    }

    /// Moves the inputs, KV caches and recurrent states of op `index` to the host, because the
    /// backend does not support the op.
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
            } else if op.kind.is_recurrent()
                && let Some(state) = device.take_state(index)
            {
                row.recurrent_states.resize_with(ops, Vec::new);
                row.recurrent_states[index] = state;
            }
        }
        Ok(())
    }

    /// Whether a segment's row skips the current op, because its job does not need the op or skips
    /// the layer. The row's KV cache and recurrent state must not change, and its outputs are not
    /// used.
    pub fn is_absent(&self, segment: &Segment) -> bool {
        self.absent.get(segment.slot).copied().unwrap_or(false)
    }

    /// Number of tokens on an edge.
    pub fn tokens(&self, edge: EdgeId) -> usize {
        self.pass.len(self.program.edge(edge).token_set)
    }

    /// Returns a buffer for an edge's value, `[tokens, width]`, with unspecified contents.
    pub fn alloc(&mut self, edge: EdgeId) -> Vec<f32> {
        let len = self.tokens(edge) * self.program.edge(edge).width;
        self.arena.take(len)
    }

    /// Returns a scratch buffer of `len` floats with unspecified contents. Return it with
    /// [`Frame::give_back`].
    pub fn scratch(&mut self, len: usize) -> Vec<f32> {
        self.arena.take(len)
    }

    /// Returns a buffer from [`Frame::scratch`] or [`Frame::copy`] to the arena.
    pub fn give_back(&mut self, buffer: Vec<f32>) {
        self.arena.give(buffer);
    }

    /// Adds the updates of the rows' adapters to the output of a projection, `[tokens, outputs]`;
    /// `x` is its input.
    pub(crate) fn add_adapters(&mut self, weight: WeightId, x: EdgeId, value: &mut [f32]) {
        let token_set = self.program.edge(x).token_set;
        for (update, tokens) in updates(self.adapters, self.pass, token_set, weight) {
            let mut scratch = self.arena.take(tokens.scratch_len(update));
            tokens.add_update(self.pool, update, self.value(x), value, &mut scratch);
            self.arena.give(scratch);
        }
    }

    /// Whether a row of the pass has an adapter that changes the projection of op `index`.
    pub(crate) fn is_adapted(&self, index: usize) -> bool {
        let op = &self.program.ops()[index].kind;
        let changes = |segment: &Segment| segment.adapter.is_some_and(|adapter| self.adapters[adapter].changes(op));
        !self.adapters.is_empty() && self.pass.segments.iter().any(changes)
    }

    /// Takes the reusable segment list, empty. Return it with `put_segments`.
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

    /// Copies from edge `from` the tokens that are in the domain of edge `to`.
    pub fn select(&mut self, from: EdgeId, to: EdgeId) -> Vec<f32> {
        let mut selected = self.alloc(to);
        let (width, value) = (self.program.edge(to).width, self.value(from));
        let picks = self.pass.indices_in(self.program.edge(from).token_set, self.program.edge(to).token_set);
        for (token, index) in selected.chunks_exact_mut(width).zip(picks) {
            token.copy_from_slice(&value[index * width..][..width]);
        }
        selected
    }

    /// Whether a backward pass or a branch reads an edge's value after this pass.
    pub(crate) fn retains(&self, edge: EdgeId) -> bool {
        self.retained.as_ref().is_some_and(|retained| retained.retains(edge))
    }

    /// Whether op `reader` is the last to use an edge's value, so that it may overwrite the buffer.
    pub fn is_free_after(&self, edge: EdgeId, reader: usize, taps: &Taps) -> bool {
        self.program.last_use(edge) == reader && !taps.captures_whole(edge) && !self.retains(edge)
    }

    /// An edge's value for in-place modification: the buffer itself if op `reader` is its last
    /// user, otherwise a copy.
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

    /// Copies edge `from` onto edge `to` (the tokens of its domain), bypassing the ops between: a
    /// skipped layer.
    pub(crate) fn copy_edge(&mut self, from: EdgeId, to: EdgeId, taps: &mut Taps) -> Result<()> {
        let (Some(Value::Device(value)), Some(memory)) = (&self.buffers.values[from], self.memory) else {
            let selected = self.select(from, to);
            return self.put(to, selected, taps);
        };
        let width = self.program.edge(to).width;
        let picks = self.pass.indices_in(self.program.edge(from).token_set, self.program.edge(to).token_set);
        let tokens: Vec<usize> = picks.collect();
        let columns = 0..width;
        let selection = Selection { width, tokens: &tokens, columns: std::slice::from_ref(&columns) };
        match memory.tap(value, &selection, &TapWork::Gather) {
            Some(copy) => self.put_device(to, copy, taps),
            None => Ok(()),
        }
    }

    /// Applies the edge's taps to a value and puts it on the edge.
    pub fn put(&mut self, edge: EdgeId, mut value: Vec<f32>, taps: &mut Taps) -> Result<()> {
        if taps.touches(edge) {
            taps.apply(self.program, self.pass, edge, &mut value, self.choices(edge))?;
        }
        self.buffers.values[edge] = Some(Value::Host(value));
        Ok(())
    }

    /// Like [`put`](Self::put) for a value in device memory; the taps run there.
    pub fn put_device(&mut self, edge: EdgeId, value: DeviceValue, taps: &mut Taps) -> Result<()> {
        if let Some(memory) = self.memory.filter(|_| taps.touches(edge)) {
            if let Some(routed) = self.program.edge(edge).routed.filter(|_| taps.selects_experts(edge)) {
                self.move_to_host(routed.indices)?;
            }
            let mut moved = std::mem::take(&mut self.moved);
            let outcome = taps.apply_on_device(
                (self.program, self.pass),
                edge,
                &value,
                self.choices(edge),
                &mut Device { memory, moved: &mut moved },
            );
            self.moved = moved;
            outcome?;
        }
        self.buffers.values[edge] = Some(Value::Device(value));
        Ok(())
    }

    /// The chosen experts behind an edge with one slot per expert, `[tokens, slots]`; empty for
    /// other edges, and if they are in device memory.
    fn choices(&self, edge: EdgeId) -> &[f32] {
        let indices = self.program.edge(edge).routed.map(|routed| routed.indices);
        match indices.map(|indices| &self.buffers.values[indices]) {
            Some(Some(Value::Host(choices))) => choices,
            _ => &[],
        }
    }

    /// Frees the edges whose last reader is op `index`, handing whole captures their buffer.
    pub(crate) fn free_dead_edges(&mut self, index: usize, taps: &mut Taps, keep: Option<EdgeId>) {
        let program = self.program;
        program.dead_after(index).iter().filter(|&&edge| Some(edge) != keep).for_each(|&edge| self.free(edge, taps));
    }

    /// Frees all remaining edges except `keep`, after the last op.
    pub(crate) fn free_all_but(&mut self, keep: Option<EdgeId>, taps: &mut Taps) {
        let edges = self.program.edge_ids().filter(|&edge| Some(edge) != keep);
        edges.for_each(|edge| self.free(edge, taps));
    }

    /// Keeps the features of a layer of a cross-layer transcoder for later layers and the backward
    /// pass.
    pub(crate) fn put_features(&mut self, acts: EdgeId, features: LayerFeatures) {
        if let Some(retained) = &mut self.retained {
            retained.features.insert(acts, features.clone());
        }
        self.buffers.features.insert(acts, features);
    }

    /// The features of an earlier layer, if its op has run in this pass.
    pub(crate) fn features(&self, acts: EdgeId) -> Option<&LayerFeatures> {
        self.buffers.features.get(&acts)
    }

    /// Passes a value on from one edge to another, unchanged except by taps: op `index` between
    /// them does not run.
    pub(crate) fn pass_on(&mut self, from: EdgeId, to: EdgeId, index: usize, taps: &mut Taps) -> Result<()> {
        let is_free = self.is_free_after(from, index, taps);
        match (&self.buffers.values[from], self.memory) {
            (Some(Value::Device(value)), Some(_)) if is_free => {
                let value = value.clone();
                self.buffers.values[from] = None;
                self.put_device(to, value, taps)
            }
            (Some(Value::Device(_)), Some(_)) => self.copy_edge(from, to, taps),
            _ => {
                let value = self.reuse(from, index, taps);
                self.put(to, value, taps)
            }
        }
    }

    /// Whether a backward pass will read unfused attention.
    pub(crate) fn keeps_attention(&self) -> bool {
        self.retained.is_some()
    }

    /// Retains one row's attention scores or probabilities after their taps.
    pub(crate) fn keep_attention(&mut self, edge: EdgeId, row: usize, value: Vec<f32>) {
        if let Some(retained) = &mut self.retained {
            retained.put_attention(edge, row, value);
        }
    }

    /// Takes the KV cache of a row and layer, with capacity for at least `capacity` positions.
    /// Return it with [`Frame::put_kv`].
    pub(crate) fn take_kv(&mut self, slot: usize, layer: usize, shape: &AttentionShape, capacity: usize) -> KvCache {
        self.rows[slot].take_kv(layer, shape, capacity, |layout, capacity| self.arena.take_cache(layout, capacity))
    }

    /// Puts the KV cache of a row and layer back.
    pub(crate) fn put_kv(&mut self, slot: usize, layer: usize, kv: KvCache) {
        self.rows[slot].put_kv(layer, self.program.architecture().layers.len(), kv);
    }

    /// Frees a layer's KV cache for the rows that do not keep it, so that the next layer reuses the
    /// memory.
    pub(crate) fn free_kv(&mut self, layer: usize) {
        let rows = self.rows.iter_mut().filter(|row| !row.keeps_kv);
        self.arena.give_caches(rows.filter_map(|row| row.free_kv(layer)));
    }

    /// Moves a dead value to the retained values, to its whole capture, or else back to the arena.
    fn free(&mut self, edge: EdgeId, taps: &mut Taps) {
        let Some(value) = self.buffers.values[edge].take() else { return };
        let mut value = Some(value);
        if let Some(retained) = self.retained.as_mut().filter(|retained| retained.retains(edge)) {
            let own = if taps.captures_whole(edge) { value.as_ref().map(Value::copy) } else { value.take() };
            own.into_iter().for_each(|own| retained.put(edge, own));
        }
        let left = value.and_then(|value| taps.hand_over(self.program, self.pass, edge, value));
        if let Some(Value::Host(buffer)) = left {
            self.arena.give(buffer);
        }
    }
}
