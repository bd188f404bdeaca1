//! Buffers that are reused from op to op and from pass to pass.

use crate::error::Result;
use crate::ids::IdVec;
use crate::job::Segment;
use crate::memory::{DeviceMemory, DeviceValue, Value};
use crate::program::{EdgeId, Program};
use crate::sae::LayerFeatures;
use pellucid_kernels::attention::{KvCache, KvLayout};
use std::collections::HashMap;

/// Free buffers. Once they have grown, decoding allocates nothing.
pub(crate) struct Arena {
    free: Vec<Vec<f32>>,
    /// Free KV caches.
    caches: Vec<KvCache>,
    /// Capacity of new buffers relative to their length.
    growth: f64,
}

impl Default for Arena {
    fn default() -> Arena {
        Arena { free: Vec::new(), caches: Vec::new(), growth: 1.0 }
    }
}

impl Arena {
    /// Sets the capacity of new buffers to `growth` times their length, for a pass that will grow
    /// to `growth` times its tokens.
    pub fn set_growth(&mut self, growth: f64) {
        self.growth = growth;
    }

    /// Returns a buffer of `len` floats with unspecified contents.
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        let capacity = (len as f64 * self.growth).ceil() as usize;
        // Best fit within 25 %: captures keep their buffer, so a small value must not hold a large
        // one.
        let fits = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| (len..=capacity + capacity / 4).contains(&buffer.capacity()));
        match fits.min_by_key(|(_, buffer)| buffer.capacity()).map(|(index, _)| index) {
            Some(index) => {
                let mut buffer = self.free.swap_remove(index);
                buffer.resize(len, 0.0);
                buffer
            }
            // Fresh zero pages are lazily mapped, so this allocation is free until written.
            None => {
                let mut buffer = vec![0.0; capacity];
                buffer.truncate(len);
                buffer
            }
        }
    }

    /// Returns a buffer to the arena.
    pub fn give(&mut self, buffer: Vec<f32>) {
        self.free.push(buffer);
    }

    /// Returns KV caches to the arena.
    pub fn give_caches(&mut self, caches: impl Iterator<Item = KvCache>) {
        self.caches.extend(caches);
    }

    /// Returns an empty KV cache with capacity for `capacity` positions.
    pub fn take_cache(&mut self, layout: KvLayout, capacity: usize) -> KvCache {
        let fits = |store: &KvCache| store.layout() == layout && store.capacity() >= capacity;
        match self.caches.iter().position(fits) {
            Some(index) => {
                let mut store = self.caches.swap_remove(index);
                store.truncate(0);
                store
            }
            None => KvCache::new(layout, capacity),
        }
    }
}

/// Edge values and rotary tables of a pass. The next pass reuses the allocations.
pub(crate) struct Buffers {
    pub(super) values: IdVec<EdgeId, Option<Value>>,
    /// For each rotary embedding `(cos, sin)` of the pass's tokens, `[tokens, frequencies]`.
    pub(super) rotations: Vec<(Vec<f32>, Vec<f32>)>,
    /// An empty list, kept for its allocation.
    pub(super) segments: Vec<Segment>,
    /// Features that later layers of a cross-layer transcoder decode, by the edge of their
    /// activations.
    pub(super) features: HashMap<EdgeId, LayerFeatures>,
}

impl Buffers {
    pub fn new(program: &Program) -> Buffers {
        let rotations = program.architecture().ropes.iter().map(|_| Default::default()).collect();
        let values = program.edge_ids().map(|_| None).collect();
        Buffers { values, rotations, segments: Vec::new(), features: HashMap::new() }
    }

    /// Drops all values.
    pub fn clear(&mut self) {
        self.values.iter_mut().for_each(|value| *value = None);
        self.features.clear();
    }

    /// Sets the features that later layers decode: none at the start of a pass, those of the
    /// original pass for a replay.
    pub fn set_features(&mut self, features: HashMap<EdgeId, LayerFeatures>) {
        self.features = features;
    }

    /// Puts a value on an edge without applying taps.
    pub fn put(&mut self, edge: EdgeId, value: Vec<f32>) {
        self.values[edge] = Some(Value::Host(value));
    }

    /// Takes the value of an edge, downloading it if it is on the device; empty if there is none.
    pub fn take(&mut self, edge: EdgeId, memory: Option<&dyn DeviceMemory>) -> Result<Vec<f32>> {
        match self.values[edge].take() {
            Some(Value::Host(value)) => Ok(value),
            Some(Value::Device(value)) => download_one(memory, &value),
            None => Ok(Vec::new()),
        }
    }

    /// Appends tokens to an edge's value.
    pub fn extend(&mut self, edge: EdgeId, more: Value, memory: Option<&dyn DeviceMemory>) {
        let joined = match (self.values[edge].take(), more, memory) {
            (None, more, _) => more,
            (Some(Value::Host(mut value)), Value::Host(more), _) => {
                value.extend(more);
                Value::Host(value)
            }
            (Some(value), more, Some(memory)) => {
                let on_device = |value: Value| match value {
                    Value::Host(value) => memory.upload(&value),
                    Value::Device(value) => value,
                };
                Value::Device(memory.concat(&on_device(value), &on_device(more)))
            }
            (Some(_), _, None) => unreachable!("only a backend with device memory creates device values"),
        };
        self.values[edge] = Some(joined);
    }
}

/// Copies one value to the host.
pub(super) fn download_one(memory: Option<&dyn DeviceMemory>, value: &DeviceValue) -> Result<Vec<f32>> {
    let memory = memory.expect("only a backend with device memory creates device values");
    Ok(memory.download(&[value])?.pop().unwrap_or_default())
}
