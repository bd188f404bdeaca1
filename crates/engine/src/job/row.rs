//! What a row has computed so far: KV cache and recurrent states.

use crate::memory::DeviceRow;
use pellucid_kernels::attention::{AttentionShape, KvFormat, KvLayout, KvStore};
use std::sync::Arc;

/// The state of one row between passes.
#[derive(Default)]
pub struct RowState {
    /// Positions computed.
    pub len: usize,
    /// Positions that a new KV cache reserves memory for.
    pub capacity: usize,
    /// KV cache of each layer that has run.
    pub kv: Vec<Option<KvStore>>,
    /// Number format of the KV cache.
    pub format: KvFormat,
    /// Keep the KV cache after a pass. If false, each layer's cache is freed right after its attention.
    pub keeps_kv: bool,
    /// States of recurrent ops, by op.
    pub carried: Vec<Vec<f32>>,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// What a backend with memory of its own keeps of the row.
    pub device: Option<Box<dyn DeviceRow>>,
    /// Another row's KV cache, by layer, that this row's begins with.
    pub(crate) begins_with: Option<Beginning>,
}

/// The first positions of another row's KV cache.
#[derive(Clone)]
pub(crate) struct Beginning {
    pub kv: Arc<Vec<Option<KvStore>>>,
    pub positions: usize,
}

impl RowState {
    /// A row of which nothing is computed yet.
    pub(crate) fn new(prompt: usize, format: KvFormat) -> RowState {
        RowState { prompt, format, ..RowState::default() }
    }

    /// A copy of the state after the first `len` positions, with capacity for `capacity`. Recurrent states are known after the last
    /// position only, so `len` must be all of them if the model has some.
    pub(crate) fn prefix(&self, len: usize, capacity: usize, prompt: usize) -> RowState {
        let kv = self.kv.iter().map(|kv| kv.as_ref().map(|kv| kv.prefix(len, capacity))).collect();
        RowState {
            len,
            capacity,
            kv,
            format: self.format,
            keeps_kv: self.keeps_kv,
            carried: self.carried.clone(),
            prompt,
            device: self.device.as_ref().map(|device| device.prefix(len, capacity)),
            begins_with: None,
        }
    }

    /// Drops the positions from `len` on. Recurrent states cannot be rolled back.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.kv.iter_mut().flatten().for_each(|kv| kv.truncate(len));
        self.device.iter_mut().for_each(|device| device.truncate(len));
    }

    /// Bytes of its KV caches and recurrent states.
    pub(crate) fn bytes(&self) -> usize {
        let states: usize = self.carried.iter().map(|state| 4 * state.len()).sum();
        let device = self.device.as_ref().map_or(0, |device| device.bytes());
        self.kv.iter().flatten().map(KvStore::bytes).sum::<usize>() + states + device
    }

    /// Frees the KV cache of a layer; gives the host's for its memory.
    pub(crate) fn free_kv(&mut self, layer: usize) -> Option<KvStore> {
        self.device.iter_mut().for_each(|device| device.free_kv(layer));
        self.kv.get_mut(layer)?.take()
    }

    /// Takes the KV cache of a layer out of the row; a new one, from `allocate`, where the layer has none yet.
    pub(crate) fn take_kv(
        &mut self,
        layer: usize,
        shape: &AttentionShape,
        capacity: usize,
        allocate: impl FnOnce(KvLayout, usize) -> KvStore,
    ) -> KvStore {
        if let Some(kv) = self.kv.get_mut(layer).and_then(Option::take) {
            return kv;
        }
        let capacity = self.capacity.max(capacity);
        let beginning = self.begins_with.as_ref();
        let from = beginning.and_then(|beginning| Some((beginning.kv.get(layer)?.as_ref()?, beginning.positions)));
        let mut kv = allocate(from.map_or_else(|| shape.kv_layout(self.format), |(kv, _)| kv.layout()), capacity);
        if let Some((from, positions)) = from {
            kv.begin_with(from, positions);
        }
        kv
    }

    /// Puts the KV cache of a layer back.
    pub(crate) fn put_kv(&mut self, layer: usize, layers: usize, kv: KvStore) {
        self.kv.resize_with(layers.max(layer + 1), || None);
        self.kv[layer] = Some(kv);
    }
}
