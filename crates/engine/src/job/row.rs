//! The state of a row between passes: KV cache and recurrent states.

use crate::memory::DeviceRow;
use pellucid_kernels::attention::{AttentionShape, KvCache, KvFormat, KvLayout};
use std::sync::Arc;

/// The state of one row between passes.
#[derive(Default)]
pub struct RowState {
    /// Number of positions computed.
    pub len: usize,
    /// Positions that a new KV cache reserves memory for.
    pub capacity: usize,
    /// KV cache by layer; `None` for layers that have not run.
    pub kv: Vec<Option<KvCache>>,
    /// Element format of the KV cache.
    pub format: KvFormat,
    /// Keep the KV cache after a pass. If false, each layer's cache is freed right after its
    /// attention.
    pub keeps_kv: bool,
    /// States of recurrent ops, by op index.
    pub recurrent_states: Vec<Vec<f32>>,
    /// Number of tokens in the prompt.
    pub prompt: usize,
    /// The row's state in device memory.
    pub device: Option<Box<dyn DeviceRow>>,
    /// Prefix of another row's KV cache that each layer's cache starts with.
    pub(crate) kv_prefix: Option<KvPrefix>,
}

/// The first positions of another row's KV cache.
#[derive(Clone)]
pub(crate) struct KvPrefix {
    pub kv: Arc<Vec<Option<KvCache>>>,
    pub positions: usize,
}

impl RowState {
    /// A row with no computed positions.
    pub(crate) fn new(prompt: usize, format: KvFormat) -> RowState {
        RowState { prompt, format, ..RowState::default() }
    }

    /// Copies the state after the first `len` positions, with capacity for `capacity`. Recurrent
    /// states exist only for the last position, so `len` must be the full length if the model has
    /// any.
    pub(crate) fn prefix(&self, len: usize, capacity: usize, prompt: usize) -> RowState {
        let kv = self.kv.iter().map(|kv| kv.as_ref().map(|kv| kv.prefix(len, capacity))).collect();
        RowState {
            len,
            capacity,
            kv,
            format: self.format,
            keeps_kv: self.keeps_kv,
            recurrent_states: self.recurrent_states.clone(),
            prompt,
            device: self.device.as_ref().map(|device| device.prefix(len, capacity)),
            kv_prefix: None,
        }
    }

    /// Drops the positions from `len` on. Recurrent states cannot be rolled back.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.kv.iter_mut().flatten().for_each(|kv| kv.truncate(len));
        self.device.iter_mut().for_each(|device| device.truncate(len));
    }

    /// Bytes of the KV caches and recurrent states.
    pub(crate) fn bytes(&self) -> usize {
        let states: usize = self.recurrent_states.iter().map(|state| 4 * state.len()).sum();
        let device = self.device.as_ref().map_or(0, |device| device.bytes());
        self.kv.iter().flatten().map(KvCache::bytes).sum::<usize>() + states + device
    }

    /// Frees the KV cache of a layer; returns the one in host memory for reuse.
    pub(crate) fn free_kv(&mut self, layer: usize) -> Option<KvCache> {
        self.device.iter_mut().for_each(|device| device.free_kv(layer));
        self.kv.get_mut(layer)?.take()
    }

    /// Takes the KV cache of a layer out of the row; `allocate` creates it if the layer has none
    /// yet.
    pub(crate) fn take_kv(
        &mut self,
        layer: usize,
        shape: &AttentionShape,
        capacity: usize,
        allocate: impl FnOnce(KvLayout, usize) -> KvCache,
    ) -> KvCache {
        if let Some(kv) = self.kv.get_mut(layer).and_then(Option::take) {
            return kv;
        }
        let capacity = self.capacity.max(capacity);
        let prefix = self.kv_prefix.as_ref();
        let from = prefix.and_then(|prefix| Some((prefix.kv.get(layer)?.as_ref()?, prefix.positions)));
        let mut kv = allocate(from.map_or_else(|| shape.kv_layout(self.format), |(kv, _)| kv.layout()), capacity);
        if let Some((from, positions)) = from {
            kv.copy_prefix_from(from, positions);
        }
        kv
    }

    /// Puts the KV cache of a layer back.
    pub(crate) fn put_kv(&mut self, layer: usize, layers: usize, kv: KvCache) {
        self.kv.resize_with(layers.max(layer + 1), || None);
        self.kv[layer] = Some(kv);
    }
}
