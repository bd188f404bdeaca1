//! The memory that a request needs, known before it runs.

use crate::error::Result;
use crate::explain::capture_bytes;
use crate::generate::GenerateOptions;
use crate::job::spilled_bytes;
use crate::model::Model;
use crate::plan::{CompiledPlan, Plan};
use crate::program::OpKind;

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
        let (compiled, limits) = crate::generate::check(model, inputs, plan, options)?;
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

/// Bytes of the KV caches and recurrent states of one row of `positions` positions.
fn row_bytes(model: &Model, compiled: &CompiledPlan, positions: usize) -> usize {
    let ops = model.program().ops()[..compiled.ops].iter();
    let entered = ops.filter(|op| op.layer.is_none_or(|layer| !compiled.skipped[layer]));
    let bytes = |op: &OpKind| match op {
        OpKind::Attention { shape, .. } => shape.kv_layout(model.kv()).bytes(positions),
        _ if op.is_recurrent() => 4 * state_floats(model, op),
        _ => 0,
    };
    entered.map(|op| bytes(&op.kind)).sum()
}

/// Floats of the state that a recurrent op carries from token to token.
fn state_floats(model: &Model, op: &OpKind) -> usize {
    let width = model.program().edge(op.output()).width;
    match op {
        // The inputs of the last kernel_size − 1 tokens.
        OpKind::Convolve { kernel, .. } => model.weights().vector(*kernel).len() - width,
        OpKind::Recur { shape, .. } => shape.heads * shape.key_dim * shape.value_dim,
        // Numerator, denominator and running maximum of each channel.
        OpKind::Wkv { .. } => 3 * width,
        _ => width,
    }
}
