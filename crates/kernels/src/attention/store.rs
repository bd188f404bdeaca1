//! Keys and values of one row in one layer.

use super::numbers::{KvFormat, Numbers};
use crate::tile::PANEL;
use std::ops::Range;

/// Cached keys and values: keys in panels of sixteen positions, values position after position.
pub struct KvStore {
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    capacity: usize,
    len: usize,
    format: KvFormat,
    /// `[kv_heads][capacity / 16][key_dim][16]`
    keys: Numbers,
    /// `[kv_heads][capacity][value_stride]`
    values: Numbers,
}

impl KvStore {
    /// An empty store with room for `capacity` positions.
    pub fn new(kv_heads: usize, key_dim: usize, value_dim: usize, capacity: usize, format: KvFormat) -> KvStore {
        let capacity = capacity.next_multiple_of(PANEL);
        KvStore {
            kv_heads,
            key_dim,
            value_dim,
            capacity,
            len: 0,
            format,
            keys: Numbers::zeroed(format, kv_heads * capacity * key_dim),
            values: Numbers::zeroed(format, kv_heads * capacity * value_dim.next_multiple_of(PANEL)),
        }
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
        let (key_width, value_width) = (self.kv_heads * self.key_dim, self.kv_heads * self.value_dim);
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
            for head in 0..self.kv_heads {
                let panel = self.panel_start(head, position / PANEL) + position % PANEL;
                self.keys.put(panel, PANEL, &keys[head * self.key_dim..][..self.key_dim]);
                let at = (head * self.capacity + position) * stride;
                self.values.put(at, 1, &values[head * self.value_dim..][..self.value_dim]);
            }
        }
        self.len += count;
    }

    /// A store that begins with the first positions of this one and has room for `capacity`.
    pub fn prefix(&self, len: usize, capacity: usize) -> KvStore {
        let mut copy = KvStore::new(self.kv_heads, self.key_dim, self.value_dim, capacity.max(len), self.format);
        let stride = self.value_stride();
        for head in 0..self.kv_heads {
            let keys = len.next_multiple_of(PANEL) * self.key_dim;
            let (from, to) = (self.panel_start(head, 0), copy.panel_start(head, 0));
            copy.keys.copy(to, &self.keys, from..from + keys);
            let (from, to) = (head * self.capacity * stride, head * copy.capacity * stride);
            copy.values.copy(to, &self.values, from..from + len * stride);
        }
        copy.len = len;
        copy
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
        self.value_dim.next_multiple_of(PANEL)
    }

    fn panel_start(&self, head: usize, panel: usize) -> usize {
        (head * (self.capacity / PANEL) + panel) * self.key_dim * PANEL
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
