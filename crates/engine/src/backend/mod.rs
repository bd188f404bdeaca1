//! Backends: what executes ops.
//!
//! A [`Backend`] executes one op after the other on a [`Frame`] (`frame.rs`), which holds the edges alive; every value that is put on
//! an edge meets the taps of the jobs in the pass first (`taps/`). `cpu/` is the CPU backend.

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

/// Executes whole ops on a frame. An implementation owns its own kinds of memory and arithmetic; what it shares with the engine are
/// the frame's values (f32) and the duty to show each value to the taps.
pub trait Backend: Send + Sync {
    /// Runs op `index` of the frame's program: reads its inputs, puts its outputs.
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()>;
}
