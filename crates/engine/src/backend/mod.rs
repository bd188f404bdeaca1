//! Backends execute ops.
//!
//! A [`Backend`] executes one op after the other on a [`Frame`] (`frame.rs`), which holds the live
//! edges. Each value put on an edge first goes through the taps of the pass's jobs (`taps/`).
//! `cpu/` is the CPU backend. A backend with device memory ([`memory`](crate::memory)) keeps
//! values, KV caches and captures there and receives taps as data; `deferred.rs`, next to this
//! module, is such a backend for tests.

mod arena;
pub(crate) mod cpu;
mod frame;
mod retained;
mod taps;

pub(crate) use arena::{Arena, Buffers};
pub use frame::Frame;
pub(crate) use retained::RetainedValues;
pub use taps::{AttentionRow, Taps};
pub(crate) use taps::{SaeOutput, SaeToken, sae_tokens};

use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::program::OpKind;

/// Executes whole ops on a frame: reads an op's inputs from their edges and puts its outputs on
/// theirs.
///
/// The CPU executes immediately. A device may record the op and execute it later: it gets inputs
/// with [`Frame::device`] and puts outputs with [`Frame::put_device`], which passes the taps to its
/// [`DeviceMemory`] as data. The host waits for the device once per call, when captures are
/// downloaded, and wherever it needs floats: a fallback op, a closure, a value expression,
/// sampling.
pub trait Backend: Send + Sync {
    /// Whether this backend executes an op itself. `tapped_inside` is true if a tap touches an
    /// inner edge of the op (attention scores, a norm's scale), so that taps run in the middle of
    /// the op. All other ops fall back to the CPU: their inputs move to the host (counted in
    /// [`TransferStats`](crate::memory::TransferStats)), and
    /// [`Plan::explain`](crate::Plan::explain) lists them in advance.
    fn runs(&self, _op: &OpKind, _tapped_inside: bool) -> bool {
        true
    }

    /// Runs op `index` of the frame's program.
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()>;

    /// The device memory that values live in; `None` for host memory.
    fn memory(&self) -> Option<&dyn DeviceMemory> {
        None
    }
}
