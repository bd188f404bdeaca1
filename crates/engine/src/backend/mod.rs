//! Backends: what executes ops.
//!
//! A [`Backend`] executes one op after the other on a [`Frame`] (`frame.rs`), which holds the edges alive; every value that is put on
//! an edge meets the taps of the jobs in the pass first (`taps/`). `cpu/` is the CPU backend. A backend with memory of its own
//! ([`memory`](crate::memory)) keeps values, KV caches and captures there, and gets taps as data; `deferred.rs` beside this module is one for tests.

mod arena;
pub(crate) mod cpu;
mod frame;
mod kept;
mod taps;

pub(crate) use arena::{Arena, Buffers};
pub use frame::Frame;
pub(crate) use kept::KeptValues;
pub use taps::{AttentionRow, Taps};

use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::program::OpKind;

/// Executes whole ops on a frame: it reads the op's inputs from their edges and puts its outputs on theirs.
///
/// The CPU executes at once. A device may record the op and execute it later: it takes its inputs with [`Frame::device`] and puts its
/// outputs with [`Frame::put_device`], which hands the taps to its [`DeviceMemory`] as data. The host waits once for each call, when
/// captures are resolved, and wherever it needs floats: for an op that falls back, a closure, a value expression, or sampling.
pub trait Backend: Send + Sync {
    /// Whether this backend executes an op itself. `tapped_inside` says that a tap touches an inner edge of the op (attention scores,
    /// a norm's scale), whose taps run in the middle of it. The other ops run on the CPU: their inputs move to the host, which is
    /// counted in [`Moved`](crate::memory::Moved), and [`Plan::explain`](crate::Plan::explain) names them beforehand.
    fn runs(&self, _op: &OpKind, _tapped_inside: bool) -> bool {
        true
    }

    /// Runs op `index` of the frame's program.
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()>;

    /// The memory that values live in; `None` if it is the host's.
    fn memory(&self) -> Option<&dyn DeviceMemory> {
        None
    }
}
