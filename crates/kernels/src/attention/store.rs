//! Keys and values of one row in one layer.

use super::numbers::{KvFormat, Numbers};
use crate::tile::PANEL;
use std::ops::Range;

/// What a position of a store is made of. Stores of one layout can stand in for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// How numbers are kept.
    pub format: KvFormat,
}

/// Cached keys and values: keys in panels of sixteen positions, values position after position.
pub struct KvStore {
    layout: KvLayout,
    capacity: usize,
    len: usize,
    /// `[kv_heads][capacity / 16][key_dim][16]`
    keys: Numbers,
    /// `[kv_heads][capacity][value_stride]`
    values: Numbers,
}

impl KvStore {
    /// An empty store with room for `capacity` positions.
    pub fn new(layout: KvLayout, capacity: usize) -> KvStore {
        let capacity = capacity.next_multiple_of(PANEL);
        let KvLayout { kv_heads, key_dim, value_dim, format } = layout;
        KvStore {
            layout,
            capacity,
            len: 0,
            keys: Numbers::zeroed(format, kv_heads * capacity * key_dim),
            values: Numbers::zeroed(format, kv_heads * capacity * value_dim.next_multiple_of(PANEL)),
        }
    }

    /// What its positions are made of.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Positions that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Adds positions: `keys` is `[n, kv_heads · key_dim]`, `values` `[n, kv_heads · value_dim]`.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let KvLayout { kv_heads, key_dim, value_dim, .. } = self.layout;
        let (key_width, value_width) = (kv_heads * key_dim, kv_heads * value_dim);
        let count = keys.len() / key_width;
        assert!(
            keys.len() == count * key_width && values.len() == count * value_width,
            "keys and values of different length"
        );
        if self.len + count > self.capacity {
            *self = self.prefix(self.len, (self.len + count).max(2 * self.capacity));
        }
        let stride = self.value_stride();
        for (i, (keys, values)) in keys.chunks_exact(key_width).zip(values.chunks_exact(value_width)).enumerate() {
            let position = self.len + i;
            for head in 0..kv_heads {
                let panel = self.panel_start(head, position / PANEL) + position % PANEL;
                self.keys.put(panel, PANEL, &keys[head * key_dim..][..key_dim]);
                let at = (head * self.capacity + position) * stride;
                self.values.put(at, 1, &values[head * value_dim..][..value_dim]);
            }
        }
        self.len += count;
    }

    /// A store that begins with the first positions of this one and has room for `capacity`.
    pub fn prefix(&self, len: usize, capacity: usize) -> KvStore {
        let mut copy = KvStore::new(self.layout, capacity.max(len));
        copy.begin_with(self, len);
        copy
    }

    /// Makes the first positions of another store, of the same layout, all that this one holds. There must be room for them.
    pub fn begin_with(&mut self, other: &KvStore, len: usize) {
        let stride = self.value_stride();
        for head in 0..self.layout.kv_heads {
            let keys = len.next_multiple_of(PANEL) * self.layout.key_dim;
            let (from, to) = (other.panel_start(head, 0), self.panel_start(head, 0));
            self.keys.copy(to, &other.keys, from..from + keys);
            let (from, to) = (head * other.capacity * stride, head * self.capacity * stride);
            self.values.copy(to, &other.values, from..from + len * stride);
        }
        self.len = len;
    }

    /// Forgets the positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// One coordinate of a key.
    pub fn key(&self, head: usize, position: usize, coordinate: usize) -> f32 {
        self.keys.get(self.panel_start(head, position / PANEL) + coordinate * PANEL + position % PANEL)
    }

    /// Floats from one position's value to the next: whole panels, so that tiles need no special end.
    pub(super) fn value_stride(&self) -> usize {
        self.layout.value_dim.next_multiple_of(PANEL)
    }

    fn panel_start(&self, head: usize, panel: usize) -> usize {
        (head * (self.capacity / PANEL) + panel) * self.layout.key_dim * PANEL
    }

    /// The panels of a head's keys at `positions`, which begin with a panel; where they lie, or widened into `wide`.
    pub(super) fn keys<'a>(&'a self, head: usize, positions: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        let panels = positions.start / PANEL..positions.end.div_ceil(PANEL);
        self.keys.read(self.panel_start(head, panels.start)..self.panel_start(head, panels.end), wide)
    }

    /// A head's values at `positions`; where they lie, or widened into `wide`.
    pub(super) fn values<'a>(&'a self, head: usize, positions: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        let at = |position: usize| (head * self.capacity + position) * self.value_stride();
        self.values.read(at(positions.start)..at(positions.end), wide)
    }
}
