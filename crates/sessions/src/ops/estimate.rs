//! Estimated memory and time of a batch.

use super::answers::AnswerRow;
use super::batch::OpContext;
use super::forward::{capture_latents, splices};
use super::spec::Needs;
use pellucid_engine::Plan;
use pellucid_models::Result;

/// Estimated cost of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Memory of activations, KV cache and captures, in bytes.
    pub bytes: u64,
    /// Time of the forward pass, in seconds.
    pub seconds: f64,
}

/// Estimates the forward pass of a batch: activations of one layer, or with gradients of all layers
/// from the first autoencoder on, and captures.
pub fn estimate(context: &OpContext<'_>, needs: Needs) -> Result<Estimate> {
    let rows = AnswerRow::of_batch(context);
    let mut plan = if needs.saes { splices(context) } else { Plan::default() };
    plan.taps.extend(rows.iter().enumerate().map(|(index, row)| row.capture_logits(index)));
    plan.taps.extend(capture_latents(context, &rows));
    let lengths: Vec<usize> = rows.iter().map(|row| row.tokens.len()).collect();
    let model = &context.model.model;
    let explanation = plan.explain(model, &lengths)?;
    let program = model.program();
    let layers = program.architecture().layers.len();
    let width = |layer: usize| -> usize {
        let ops = &program.ops()[program.layer_ops(layer)];
        ops.iter().map(|op| program.edge(op.kind.output()).width).sum()
    };
    let widest = (0..layers).map(width).max().unwrap_or(0);
    let first = context.hooks.iter().filter_map(|hook| hook.site.layer).min().unwrap_or(0);
    let kept = if needs.gradients { layers.saturating_sub(first).max(1) } else { 1 };
    let activations = 4 * explanation.tokens * widest * kept;
    let bytes = activations + explanation.kv_bytes + explanation.capture_bytes + explanation.feature_bytes;
    Ok(Estimate { bytes: bytes as u64, seconds: explanation.seconds })
}
