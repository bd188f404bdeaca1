//! The memory that a request needs, known before it runs.

use crate::error::Result;
use crate::generate::{CheckedGeneration, GenerateOptions, check};
use crate::job::spilled_bytes;
use crate::model::Model;
use crate::needed_memory::{capture_bytes, row_bytes};
use crate::plan::Plan;

/// Bytes that a request may come to need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestMemory {
    /// KV caches and recurrent states of its rows, at the length that they may reach.
    pub kv_bytes: usize,
    /// Captures of all positions that the rows may reach, as far as they are in memory.
    pub capture_bytes: usize,
    /// Captures that are stored in a file instead ([`CaptureOptions`](crate::CaptureOptions)).
    pub spilled_bytes: usize,
}

impl RequestMemory {
    /// Checks a request and computes the bytes that it needs when every row reaches its limit.
    pub fn of(model: &Model, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<RequestMemory> {
        let CheckedGeneration { compiled, limits, .. } = check(model, inputs, plan, options)?;
        let (program, captures) = (model.program(), &options.captures);
        let spilled_bytes = spilled_bytes(program, &compiled, captures);
        let capture_bytes = capture_bytes(&compiled, program, &limits, captures.dtype);
        Ok(RequestMemory {
            kv_bytes: limits.iter().map(|&limit| row_bytes(model, &compiled, limit)).sum(),
            // Alignment in the file may make it a little larger.
            capture_bytes: capture_bytes.saturating_sub(spilled_bytes),
            spilled_bytes,
        })
    }
}
