//! KV cache of one sequence in one layer.

use super::kv_format::{KvBuffer, KvFormat};
use crate::tile::PANEL;
use std::ops::Range;

/// Shape and dtype of one cached position. Caches of equal layout are interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Key dimension per head.
    pub key_dim: usize,
    /// Value dimension per head.
    pub value_dim: usize,
    /// Dtype of the cached elements.
    pub format: KvFormat,
}

impl KvLayout {
    /// Bytes of a cache of `positions` positions.
    pub fn bytes(&self, positions: usize) -> usize {
        let per_position = self.kv_heads * (self.key_dim + self.value_dim.next_multiple_of(PANEL));
        positions.next_multiple_of(PANEL) * per_position * self.format.bytes()
    }
}

/// KV cache: keys in panels of 16 positions, values position by position.
pub struct KvCache {
    layout: KvLayout,
    capacity: usize,
    len: usize,
    /// `[kv_heads][capacity / 16][key_dim][16]`
    keys: KvBuffer,
    /// `[kv_heads][capacity][value_stride]`
    values: KvBuffer,
}

impl KvCache {
    /// Creates an empty cache with capacity for `capacity` positions.
    pub fn new(layout: KvLayout, capacity: usize) -> KvCache {
        let capacity = capacity.next_multiple_of(PANEL);
        let KvLayout { kv_heads, key_dim, value_dim, format } = layout;
        KvCache {
            layout,
            capacity,
            len: 0,
            keys: KvBuffer::zeroed(format, kv_heads * capacity * key_dim),
            values: KvBuffer::zeroed(format, kv_heads * capacity * value_dim.next_multiple_of(PANEL)),
        }
    }

    /// Shape and dtype of a position.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of positions that fit without reallocation.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of cached positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is cached.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Appends positions, growing the cache if needed: `keys` is `[n, kv_heads · key_dim]`,
    /// `values` is `[n, kv_heads · value_dim]`.
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
                self.keys.write_strided(panel, PANEL, &keys[head * key_dim..][..key_dim]);
                let at = (head * self.capacity + position) * stride;
                self.values.write_strided(at, 1, &values[head * value_dim..][..value_dim]);
            }
        }
        self.len += count;
    }

    /// Returns a copy of the first `len` positions with capacity for `capacity`.
    pub fn prefix(&self, len: usize, capacity: usize) -> KvCache {
        let mut copy = KvCache::new(self.layout, capacity.max(len));
        copy.copy_prefix_from(self, len);
        copy
    }

    /// Replaces the content by the first `len` positions of `other`, which must have the same
    /// layout. The capacity must suffice.
    pub fn copy_prefix_from(&mut self, other: &KvCache, len: usize) {
        let stride = self.value_stride();
        for head in 0..self.layout.kv_heads {
            let keys = len.next_multiple_of(PANEL) * self.layout.key_dim;
            let (from, to) = (other.panel_start(head, 0), self.panel_start(head, 0));
            self.keys.copy_range(to, &other.keys, from..from + keys);
            let (from, to) = (head * other.capacity * stride, head * self.capacity * stride);
            self.values.copy_range(to, &other.values, from..from + len * stride);
        }
        self.len = len;
    }

    /// Drops the positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Returns one element of a key.
    pub fn key(&self, head: usize, position: usize, channel: usize) -> f32 {
        self.keys.get(self.panel_start(head, position / PANEL) + channel * PANEL + position % PANEL)
    }

    /// Floats between the values of adjacent positions: whole panels, so that tiles need no special
    /// case at the end.
    pub(super) fn value_stride(&self) -> usize {
        self.layout.value_dim.next_multiple_of(PANEL)
    }

    fn panel_start(&self, head: usize, panel: usize) -> usize {
        (head * (self.capacity / PANEL) + panel) * self.layout.key_dim * PANEL
    }

    /// Panels of a head's keys at `positions`, which must start at a panel; bf16 is widened into
    /// `wide`.
    pub(super) fn keys<'a>(&'a self, head: usize, positions: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        let panels = positions.start / PANEL..positions.end.div_ceil(PANEL);
        self.keys.read(self.panel_start(head, panels.start)..self.panel_start(head, panels.end), wide)
    }

    /// A head's values at `positions`, `[positions, value_stride]`; bf16 is widened into `wide`.
    pub(super) fn values<'a>(&'a self, head: usize, positions: Range<usize>, wide: &'a mut Vec<f32>) -> &'a [f32] {
        let at = |position: usize| (head * self.capacity + position) * self.value_stride();
        self.values.read(at(positions.start)..at(positions.end), wide)
    }
}
