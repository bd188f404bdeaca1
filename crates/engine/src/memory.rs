//! Device memory: buffers that the engine holds but cannot read directly.
//!
//! The CPU backend keeps all values in host memory and does not use this module. A device keeps
//! values, KV caches and captures in its own memory and may defer all work; only
//! [`DeviceMemory::download`] and the `take_*` calls of [`DeviceRow`] wait for it.

use crate::error::Result;
use pellucid_kernels::attention::KvCache;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// A value on an edge, `[tokens, width]`.
pub enum Value {
    /// In host memory.
    Host(Vec<f32>),
    /// In device memory.
    Device(DeviceValue),
}

impl Value {
    /// Copies a host value; a device value shares its buffer.
    pub(crate) fn copy(&self) -> Value {
        match self {
            Value::Host(value) => Value::Host(value.clone()),
            Value::Device(value) => Value::Device(value.clone()),
        }
    }
}

/// A buffer of floats in device memory. Clones share the buffer.
#[derive(Clone)]
pub struct DeviceValue {
    len: usize,
    buffer: Arc<dyn Any + Send + Sync>,
}

impl DeviceValue {
    /// Wraps a buffer of `len` floats, of a type that only the backend knows.
    pub fn new(len: usize, buffer: Arc<dyn Any + Send + Sync>) -> DeviceValue {
        DeviceValue { len, buffer }
    }

    /// Number of floats.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether two values share one buffer.
    pub fn is_same(&self, other: &DeviceValue) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// The buffer, if it has this type.
    pub fn buffer<T: 'static>(&self) -> Option<&T> {
        self.buffer.downcast_ref()
    }
}

/// A selection of tokens and columns of a value `[tokens, width]`.
pub struct Selection<'a> {
    /// Floats per token.
    pub width: usize,
    /// The selected tokens.
    pub tokens: &'a [usize],
    /// The selected columns of each token.
    pub columns: &'a [Range<usize>],
}

/// The work of a tap on the selected floats of a value.
pub enum TapWork<'a> {
    /// Copy them: `[tokens, columns]`.
    Gather,
    /// L2 norm of each token's selected vector: `[tokens]`.
    Norm,
    /// Dot product of each token's selected vector with this one: `[tokens]`.
    Dot(&'a [f32]),
    /// Edit them in place.
    Edit(TapEdit<'a>),
}

/// An edit of the selected floats, token by token.
pub enum TapEdit<'a> {
    /// Replace them.
    Set(EditOperand<'a>),
    /// Add the operand multiplied by a factor.
    Add(EditOperand<'a>, f32),
    /// Multiply by a factor.
    Scale(f32),
    /// `h + (s − 1)(h·v)v` with `v` of unit length; a `v` of a head's width applies to each head.
    ProjectOut(&'a [f32], f32),
    /// `h + (clamp(h·v, min, max) − h·v)v` with `v` of unit length; a `v` of a head's width applies
    /// to each head.
    Cap(&'a [f32], f32, f32),
}

/// The operand of an edit.
pub enum EditOperand<'a> {
    /// The same value everywhere.
    Number(f32),
    /// The same vector at each token.
    Vector(&'a [f32]),
    /// One vector for each token, `[tokens, columns]`.
    Vectors(&'a [f32]),
    /// For each token one line of a buffer `[lines, columns]`.
    Lines(&'a DeviceValue, &'a [usize]),
}

/// The memory of a device. Calls take effect in order; all but `download` may be recorded and
/// executed later.
pub trait DeviceMemory: Send + Sync {
    /// Copies floats from the host.
    fn upload(&self, values: &[f32]) -> DeviceValue;

    /// Runs a tap's work on a value. Returns the gathered or reduced floats; `None` for an edit.
    fn tap(&self, value: &DeviceValue, selection: &Selection, work: &TapWork) -> Option<DeviceValue>;

    /// Concatenates two values.
    fn concat(&self, value: &DeviceValue, more: &DeviceValue) -> DeviceValue;

    /// Copies values to the host, after executing all earlier calls.
    fn download(&self, values: &[&DeviceValue]) -> Result<Vec<Vec<f32>>>;
}

/// The device state of a row between passes: KV caches and recurrent states of the ops that the
/// backend runs.
pub trait DeviceRow: Send + Sync {
    /// Drops the positions from `len` on.
    fn truncate(&mut self, len: usize);

    /// Copies the state after the first `len` positions, with capacity for `capacity`.
    fn prefix(&self, len: usize, capacity: usize) -> Box<dyn DeviceRow>;

    /// Frees the KV cache of a layer.
    fn free_kv(&mut self, layer: usize);

    /// Moves the KV cache of a layer to the host, for an op that falls back to the CPU. Waits.
    fn take_kv(&mut self, layer: usize) -> Option<KvCache>;

    /// Moves the state of a recurrent op to the host, for an op that falls back to the CPU. Waits.
    fn take_state(&mut self, op: usize) -> Option<Vec<f32>>;

    /// Size in bytes.
    fn bytes(&self) -> usize;

    /// As the backend's own type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Transfers between host and device in a call; all zero on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Op executions that fell back to the CPU.
    pub fallbacks: usize,
    /// Bytes copied to the host.
    pub to_host: usize,
    /// Bytes copied to the device.
    pub to_device: usize,
    /// Number of times the host waited for the device.
    pub waits: usize,
}

impl std::ops::AddAssign for TransferStats {
    fn add_assign(&mut self, more: TransferStats) {
        self.fallbacks += more.fallbacks;
        self.to_host += more.to_host;
        self.to_device += more.to_device;
        self.waits += more.waits;
    }
}

// Former names.
#[doc(hidden)]
pub use self::{EditOperand as Written, TransferStats as Moved};
