//! Keys and values of one row in one layer.

use crate::memory::Aligned;
use crate::tile::PANEL;

/// Cached keys and values: keys in panels of sixteen positions, values position after position.
pub struct KvStore {
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    capacity: usize,
    len: usize,
    /// `[kv_heads][capacity / 16][key_dim][16]`
    keys: Aligned<f32>,
    /// `[kv_heads][capacity][value_stride]`
    values: Aligned<f32>,
}

impl KvStore {
    /// An empty store with room for `capacity` positions.
    pub fn new(kv_heads: usize, key_dim: usize, value_dim: usize, capacity: usize) -> KvStore {
        let capacity = capacity.next_multiple_of(PANEL);
        KvStore {
            kv_heads,
            key_dim,
            value_dim,
            capacity,
            len: 0,
            keys: Aligned::zeroed(kv_heads * capacity * key_dim),
            values: Aligned::zeroed(kv_heads * capacity * value_dim.next_multiple_of(PANEL)),
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
        (self.keys.len() + self.values.len()) * 4
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
            self.grow((self.len + count).max(2 * self.capacity));
        }
        let stride = self.value_stride();
        for (i, (keys, values)) in keys.chunks_exact(key_width).zip(values.chunks_exact(value_width)).enumerate() {
            let position = self.len + i;
            for head in 0..self.kv_heads {
                let panel = self.panel_start(head, position / PANEL) + position % PANEL;
                for (step, &x) in keys[head * self.key_dim..][..self.key_dim].iter().enumerate() {
                    self.keys[panel + step * PANEL] = x;
                }
                let at = (head * self.capacity + position) * stride;
                self.values[at..at + self.value_dim]
                    .copy_from_slice(&values[head * self.value_dim..][..self.value_dim]);
            }
        }
        self.len += count;
    }

    /// A store that begins with the first positions of this one and has room for `capacity`.
    pub fn prefix(&self, len: usize, capacity: usize) -> KvStore {
        let mut copy = KvStore::new(self.kv_heads, self.key_dim, self.value_dim, capacity.max(len));
        let stride = self.value_stride();
        for head in 0..self.kv_heads {
            let keys = len.next_multiple_of(PANEL) * self.key_dim;
            let (from, to) = (self.panel_start(head, 0), copy.panel_start(head, 0));
            copy.keys[to..to + keys].copy_from_slice(&self.keys[from..from + keys]);
            let (from, to) = (head * self.capacity * stride, head * copy.capacity * stride);
            copy.values[to..to + len * stride].copy_from_slice(&self.values[from..from + len * stride]);
        }
        copy.len = len;
        copy
    }

    /// One coordinate of a key.
    pub fn key(&self, head: usize, position: usize, coordinate: usize) -> f32 {
        self.keys[self.panel_start(head, position / PANEL) + coordinate * PANEL + position % PANEL]
    }

    fn grow(&mut self, capacity: usize) {
        let mut larger = KvStore::new(self.kv_heads, self.key_dim, self.value_dim, capacity);
        let stride = self.value_stride();
        for head in 0..self.kv_heads {
            let keys = self.capacity * self.key_dim;
            larger.keys[head * larger.capacity * self.key_dim..][..keys]
                .copy_from_slice(&self.keys[head * keys..][..keys]);
            let values = self.capacity * stride;
            larger.values[head * larger.capacity * stride..][..values]
                .copy_from_slice(&self.values[head * values..][..values]);
        }
        larger.len = self.len;
        *self = larger;
    }

    /// Floats from one position's value to the next: whole panels, so that tiles need no special end.
    pub(super) fn value_stride(&self) -> usize {
        self.value_dim.next_multiple_of(PANEL)
    }

    fn panel_start(&self, head: usize, panel: usize) -> usize {
        (head * (self.capacity / PANEL) + panel) * self.key_dim * PANEL
    }

    /// The panels of a head's keys from the one that holds `position` on.
    pub(super) fn keys_from(&self, head: usize, position: usize) -> &[f32] {
        &self.keys[self.panel_start(head, position / PANEL)..self.panel_start(head + 1, 0)]
    }

    /// A head's values from `position` on.
    pub(super) fn values_from(&self, head: usize, position: usize) -> &[f32] {
        let stride = self.value_stride();
        &self.values[(head * self.capacity + position) * stride..(head + 1) * self.capacity * stride]
    }
}
