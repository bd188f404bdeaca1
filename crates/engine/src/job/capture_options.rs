//! How captures are stored.

use crate::array::CaptureDtype;
use std::path::PathBuf;

/// How a call stores its captures.
///
/// ```
/// use pellucid_engine::{CaptureDtype, CaptureOptions, GenerateOptions};
/// let captures = CaptureOptions {
///     dtype: CaptureDtype::Bf16,
///     memory_limit: Some(1 << 30),
///     ..CaptureOptions::default()
/// };
/// let options = GenerateOptions { captures, ..GenerateOptions::default() };
/// assert_eq!(options.captures.dtype.bytes(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Element type of whole activations; reduced captures are f32.
    pub dtype: CaptureDtype,
    /// Captures of a call that need more bytes than this are stored in a memory-mapped temporary
    /// file instead of on the heap. `None`: always on the heap. Captures of attention patterns,
    /// means and gradients and sparse captures stay on the heap.
    pub memory_limit: Option<usize>,
    /// Folder of that file; the system's folder for temporary files if `None`.
    pub spill_folder: Option<PathBuf>,
}

impl CaptureOptions {
    /// Whether captures are stored as the model computes them, so that a run may return the
    /// buffers of its ops without a copy.
    pub(crate) fn allows_zero_copy(&self) -> bool {
        self.dtype == CaptureDtype::F32 && self.memory_limit.is_none()
    }
}
