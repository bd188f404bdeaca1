//! Memory of a backend's own: buffers that the engine holds but does not look into.
//!
//! The CPU backend keeps every value in host memory and needs none of this. A device keeps values, KV caches and captures in its own
//! memory and records what the engine asks for; [`DeviceMemory::download`] is the only call that waits for it.

use crate::error::Result;
use pellucid_kernels::attention::KvStore;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// A value on an edge, `[tokens, width]`.
pub enum Value {
    /// In host memory.
    Host(Vec<f32>),
    /// In the backend's memory.
    Device(DeviceValue),
}

impl Value {
    /// A copy; buffers in the backend's memory are shared.
    pub(crate) fn copy(&self) -> Value {
        match self {
            Value::Host(value) => Value::Host(value.clone()),
            Value::Device(value) => Value::Device(value.clone()),
        }
    }
}

/// A buffer of floats in a backend's memory. Clones share the buffer.
#[derive(Clone)]
pub struct DeviceValue {
    len: usize,
    buffer: Arc<dyn Any + Send + Sync>,
}

impl DeviceValue {
    /// A buffer of `len` floats. What it is, only the backend knows.
    pub fn new(len: usize, buffer: Arc<dyn Any + Send + Sync>) -> DeviceValue {
        DeviceValue { len, buffer }
    }

    /// How many floats.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether two values are one buffer.
    pub fn is_same(&self, other: &DeviceValue) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// The buffer, if it is of this type.
    pub fn buffer<T: 'static>(&self) -> Option<&T> {
        self.buffer.downcast_ref()
    }
}

/// Tokens and columns of a value `[tokens, width]`.
pub struct Selection<'a> {
    /// Floats for each token.
    pub width: usize,
    /// The selected tokens.
    pub tokens: &'a [usize],
    /// The selected columns of each.
    pub columns: &'a [Range<usize>],
}

/// What a tap does with the selected floats of a value.
pub enum TapWork<'a> {
    /// Copy them: `[tokens, columns]`.
    Gather,
    /// The length of each token's selected vector: `[tokens]`.
    Norm,
    /// Project each token's selected vector: `[tokens]`.
    Dot(&'a [f32]),
    /// Change them.
    Edit(TapEdit<'a>),
}

/// A change of the selected floats, token by token.
pub enum TapEdit<'a> {
    /// Replace them.
    Set(Written<'a>),
    /// Add to them, multiplied by a factor.
    Add(Written<'a>, f32),
    /// Multiply them.
    Scale(f32),
    /// `h + (s − 1)(h·v)v` with `v` of unit length; a `v` of a head's width applies to each head.
    ProjectOut(&'a [f32], f32),
    /// `h + (clamp(h·v, min, max) − h·v)v` with `v` of unit length; a `v` of a head's width applies to each head.
    Cap(&'a [f32], f32, f32),
}

/// The floats that an edit writes.
pub enum Written<'a> {
    /// The same number everywhere.
    Number(f32),
    /// The same vector at each token.
    Vector(&'a [f32]),
    /// One vector for each token, `[tokens, columns]`.
    Vectors(&'a [f32]),
    /// For each token one line of a buffer `[lines, columns]`.
    Lines(&'a DeviceValue, &'a [usize]),
}

/// The memory of a backend. Calls are executed in order; all but `download` may be recorded and executed later.
pub trait DeviceMemory: Send + Sync {
    /// Copies floats from the host.
    fn upload(&self, values: &[f32]) -> DeviceValue;

    /// Does a tap's work on a value. Returns what it gathers or reduces; an edit returns nothing.
    fn tap(&self, value: &DeviceValue, selection: &Selection, work: &TapWork) -> Option<DeviceValue>;

    /// The floats of a value, then those of another.
    fn concat(&self, value: &DeviceValue, more: &DeviceValue) -> DeviceValue;

    /// Copies floats to the host, when everything before has been executed.
    fn download(&self, values: &[&DeviceValue]) -> Result<Vec<Vec<f32>>>;
}

/// What a backend keeps of a row between passes: KV caches and recurrent states of the ops that it runs.
pub trait DeviceRow: Send + Sync {
    /// Drops the positions from `len` on.
    fn truncate(&mut self, len: usize);

    /// A copy of the state after the first `len` positions, with capacity for `capacity`.
    fn prefix(&self, len: usize, capacity: usize) -> Box<dyn DeviceRow>;

    /// Frees the KV cache of a layer.
    fn free_kv(&mut self, layer: usize);

    /// Moves the KV cache of a layer to the host, for an op that falls back to the CPU. Waits.
    fn take_kv(&mut self, layer: usize) -> Option<KvStore>;

    /// Moves the state of a recurrent op to the host, for an op that falls back to the CPU. Waits.
    fn take_state(&mut self, op: usize) -> Option<Vec<f32>>;

    /// Bytes that it takes.
    fn bytes(&self) -> usize;

    /// As the backend's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// What moved between host and device in a call; all zero on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Executions of ops that the backend lacks.
    pub fallbacks: usize,
    /// Bytes copied to the host.
    pub to_host: usize,
    /// Bytes copied to the device.
    pub to_device: usize,
    /// How often the host waited for the device.
    pub waits: usize,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, more: Moved) {
        self.fallbacks += more.fallbacks;
        self.to_host += more.to_host;
        self.to_device += more.to_device;
        self.waits += more.waits;
    }
}
