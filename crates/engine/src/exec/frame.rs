//! The living values of a pass.

use super::pass::{Pass, RowState, Segment};
use super::taps::Taps;
use crate::architecture::Architecture;
use crate::error::Result;
use crate::grad::Tape;
use crate::program::{EdgeId, Program};
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::{AttentionShape, KvLayout, KvStore};

/// Buffers that wait to be used again, so that steady work allocates nothing.
pub(crate) struct Arena {
    free: Vec<Vec<f32>>,
    /// Stores of keys and values that are no longer needed.
    stores: Vec<KvStore>,
    /// How many times as large values may become.
    growth: f64,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena { free: Vec::new(), stores: Vec::new(), growth: 1.0 }
    }
}

impl Arena {
    /// From now on buffers are made with room for `growth` times their values: passes to come have so many times the tokens.
    pub fn expect(&mut self, growth: f64) {
        self.growth = growth;
    }

    /// A buffer of `len` values, whatever they are.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let room = (len as f64 * self.growth).ceil() as usize;
        // The smallest that fits, and no much larger one: a value that is captured keeps its buffer, and should not keep another's room.
        let fits =
            self.free.iter().enumerate().filter(|(_, buffer)| (len..=room + room / 4).contains(&buffer.capacity()));
        match fits.min_by_key(|(_, buffer)| buffer.capacity()).map(|(index, _)| index) {
            Some(index) => {
                let mut buffer = self.free.swap_remove(index);
                buffer.resize(len, 0.0);
                buffer
            }
            // Zeros from the system cost nothing until they are written.
            None => {
                let mut buffer = vec![0.0; room];
                buffer.truncate(len);
                buffer
            }
        }
    }

    pub fn give(&mut self, buffer: Vec<f32>) {
        self.free.push(buffer);
    }

    /// An empty store of keys and values with room for `capacity` positions.
    pub fn take_store(&mut self, layout: KvLayout, capacity: usize) -> KvStore {
        let fits = |store: &KvStore| store.layout() == layout && store.capacity() >= capacity;
        match self.stores.iter().position(fits) {
            Some(index) => {
                let mut store = self.stores.swap_remove(index);
                store.truncate(0);
                store
            }
            None => KvStore::new(layout, capacity),
        }
    }
}

/// Per-call memory of edges and rotations, kept between passes.
pub(crate) struct Buffers {
    values: Vec<Option<Vec<f32>>>,
    /// For each rotary embedding the cosines and sines of the pass's tokens.
    rotations: Vec<(Vec<f32>, Vec<f32>)>,
    /// An empty list that waits to be used again.
    segments: Vec<Segment>,
}

impl Buffers {
    pub fn new(program: &Program) -> Buffers {
        let rotations = program.architecture().ropes.iter().map(|_| Default::default()).collect();
        Buffers { values: (0..program.edge_count()).map(|_| None).collect(), rotations, segments: Vec::new() }
    }

    /// Adds tokens to an edge's value.
    pub fn extend(&mut self, edge: EdgeId, more: Vec<f32>) {
        match &mut self.values[edge] {
            Some(value) => value.extend(more),
            none => *none = Some(more),
        }
    }
}

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
    /// The rows of the call.
    pub rows: &'a mut [RowState],
    arena: &'a mut Arena,
    buffers: &'a mut Buffers,
    /// What a gradient will need, where one is to follow.
    tape: Option<&'a mut Tape>,
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
        Frame { program, weights, pool, pass, rows, arena, buffers, tape: None }
    }

    /// The frame with a tape that keeps what a gradient will need.
    pub(crate) fn with_tape(self, tape: Option<&'a mut Tape>) -> Frame<'a> {
        Frame { tape, ..self }
    }

    /// Computes the pass's rotations, once for all layers.
    pub(crate) fn prepare(&mut self, architecture: &Architecture) {
        for (rope, (cos, sin)) in architecture.ropes.iter().zip(&mut self.buffers.rotations) {
            cos.clear();
            sin.clear();
            for segment in &self.pass.segments {
                for position in segment.position..segment.position + segment.count {
                    // A row's length when a token is computed: its prompt, or what was generated since.
                    let length = self.rows[segment.row].prompt.max(position + 1);
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

    /// The value on an edge.
    pub fn value(&self, edge: EdgeId) -> &[f32] {
        self.buffers.values[edge].as_deref().unwrap_or_default()
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
        let value = self.buffers.values[edge].take().unwrap_or_default();
        let mut copy = self.arena.take(value.len());
        copy.copy_from_slice(&value);
        self.buffers.values[edge] = Some(value);
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
        let recorded = self.tape.as_ref().is_some_and(|tape| tape.keeps(edge));
        self.program.last_use(edge) == reader && !taps.keeps(edge) && !recorded
    }

    /// An edge's value to change: the value itself when op `reader` is the last to need it, else a copy.
    pub fn reuse(&mut self, edge: EdgeId, reader: usize, taps: &Taps) -> Vec<f32> {
        if self.is_free_after(edge, reader, taps) { self.take(edge) } else { self.copy(edge) }
    }

    pub(crate) fn take(&mut self, edge: EdgeId) -> Vec<f32> {
        self.buffers.values[edge].take().unwrap_or_default()
    }

    /// Puts a value on its edge; the edge's taps see and change it first.
    pub fn put(&mut self, edge: EdgeId, mut value: Vec<f32>, taps: &mut Taps) -> Result<()> {
        if taps.touches(edge) {
            taps.apply(self.program, self.pass, edge, &mut value)?;
        }
        self.buffers.values[edge] = Some(value);
        Ok(())
    }

    /// Lets go of what nobody needs after op `index`.
    pub(crate) fn release(&mut self, index: usize, taps: &mut Taps, keep: Option<EdgeId>) {
        let program = self.program;
        program.dies_at(index).iter().filter(|&&edge| Some(edge) != keep).for_each(|&edge| self.let_go(edge, taps));
    }

    /// Lets go of everything that is left when the ops end early.
    pub(crate) fn release_all(&mut self, taps: &mut Taps) {
        (0..self.buffers.values.len()).for_each(|edge| self.let_go(edge, taps));
    }

    /// Puts a value back on an edge that an earlier run of its op has put, its taps included.
    pub(crate) fn put_back(&mut self, edge: EdgeId, value: &[f32]) {
        let mut copy = self.arena.take(value.len());
        copy.copy_from_slice(value);
        self.buffers.values[edge] = Some(copy);
    }

    /// Whether a gradient is to follow.
    pub(crate) fn is_recorded(&self) -> bool {
        self.tape.is_some()
    }

    /// Notes one row's scores or weights of attention as the taps left them.
    pub(crate) fn note_attention(&mut self, edge: EdgeId, row: usize, value: Vec<f32>) {
        if let Some(tape) = &mut self.tape {
            tape.note_attention(edge, row, value);
        }
    }

    /// A row's keys and values in a layer, with room for `room` positions at least; [`Frame::put_keys`] takes them back.
    pub(crate) fn take_keys(&mut self, row: usize, layer: usize, shape: &AttentionShape, room: usize) -> KvStore {
        let row = &mut self.rows[row];
        let kept = row.kv.get_mut(layer).and_then(Option::take);
        kept.unwrap_or_else(|| self.arena.take_store(shape.kv_layout(row.format), row.capacity.max(room)))
    }

    /// Gives a row its keys and values in a layer.
    pub(crate) fn put_keys(&mut self, row: usize, layer: usize, store: KvStore) {
        let layers = self.program.architecture().layers.len();
        let kv = &mut self.rows[row].kv;
        kv.resize_with(layers.max(layer + 1), || None);
        kv[layer] = Some(store);
    }

    /// Gives a row the first positions of another's keys and values in a layer, and room for `room`.
    pub(crate) fn lend_keys(&mut self, row: usize, layer: usize, from: &KvStore, positions: usize, room: usize) {
        let mut store = self.arena.take_store(from.layout(), room);
        store.begin_with(from, positions);
        self.put_keys(row, layer, store);
    }

    /// Lets go of a layer's keys and values of rows that nobody continues: the next layer uses their memory.
    pub(crate) fn forget_keys(&mut self, layer: usize) {
        let rows = self.rows.iter_mut().filter(|row| !row.keeps_keys);
        self.arena.stores.extend(rows.filter_map(|row| row.kv.get_mut(layer)?.take()));
    }

    /// Gives a value to those who captured it and to the tape, else to the arena.
    fn let_go(&mut self, edge: EdgeId, taps: &mut Taps) {
        let Some(mut value) = self.buffers.values[edge].take() else { return };
        if let Some(tape) = self.tape.as_mut().filter(|tape| tape.keeps(edge)) {
            let kept = if taps.keeps(edge) { value.clone() } else { std::mem::take(&mut value) };
            tape.put(edge, kept);
            if value.is_empty() {
                return;
            }
        }
        if let Some(value) = taps.hand_over(self.program, self.pass, edge, value) {
            self.arena.give(value);
        }
    }
}
