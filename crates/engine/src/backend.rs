//! Who executes ops.

use crate::error::Result;
use crate::exec::{Frame, Taps};

/// Executes whole ops on a frame. An implementation owns its own kinds of memory and arithmetic; what it shares with the engine are
/// the frame's values (f32) and the duty to show each value to the taps.
pub trait Backend: Send + Sync {
    /// Runs op `index` of the frame's program: reads its inputs, puts its outputs.
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()>;
}
