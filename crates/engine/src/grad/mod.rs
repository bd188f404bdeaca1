//! Gradients: reverse-mode differentiation over the op list.
//!
//! A forward pass with gradients fills a `GradientTape` (`tape.rs`): for each op between the wanted
//! sites and the last seeded one, the inputs that its derivative reads, after taps. Matrix products
//! retain nothing unless their weight gradient is wanted. Then `run_backward` (`backward.rs`) goes
//! from the last op to the first. An edge's gradient is complete when the op that computed the edge
//! is reached, because all its readers come later. At that point the `Cotangents` visit it (read,
//! edit or add to it), and it is propagated to the op's inputs. Each kind of op has its file:
//! `products.rs`, `norms.rs`, `pointwise.rs`, `arrange.rs`, `attention.rs`, `experts.rs`,
//! `recurrence.rs`, `saes.rs`. Weight gradients are accumulated along the way if wanted
//! (`weights.rs`).
//!
//! Discrete choices (top-k experts, keys kept by a dynamic mask) are constants.
//!
//! Metrics of a plan are differentiated through its taps (`taps.rs`);
//! [`Model::vjp`](crate::Model::vjp) (`vjp.rs`) computes a plain vector-Jacobian product.
//! `through.rs` runs some of the ops on given vectors, forward and backward.

mod arrange;
mod attention;
mod backward;
mod experts;
mod norms;
mod pointwise;
mod products;
mod recurrence;
mod saes;
mod tape;
mod taps;
mod through;
mod vjp;
mod weights;

use backward::run_backward;
pub(crate) use tape::GradientTape;
use taps::BackwardTaps;
pub use vjp::{GradOptions, Seed};

use crate::error::Result;
use crate::exec::{Executor, RowTokens};
use crate::job::{Job, Pass, Segment};
use crate::plan::Capture;
use crate::program::{EdgeId, Program};
use crate::weights::WeightId;

/// Visits the gradients of edges: reads, edits or adds to each one when it is complete, before it
/// is propagated.
pub(crate) trait Cotangents {
    /// The accumulated gradient of a weight, in the weight's layout, if it is wanted.
    fn weight(&mut self, _: WeightId) -> Option<&mut Vec<f32>> {
        None
    }

    /// Whether to visit an edge's gradient, even if it is zero.
    fn wants(&self, edge: EdgeId) -> bool;

    /// Like [`wants`](Self::wants) for one row. Attention edges exist only for the rows that are
    /// wanted.
    fn wants_row(&self, edge: EdgeId, row: usize) -> bool;

    /// Visits the gradient of an edge, `[tokens, width]`.
    fn visit(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()>;

    /// Visits the gradient of an attention edge for one row, `[heads, queries, keys]`.
    fn visit_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        gradient: &mut [f32],
    ) -> Result<()>;
}

/// Runs the whole prompts of a group (rows of a job that run together) and records on the tape the
/// values that the backward pass reads.
pub(crate) fn record(
    executor: &mut Executor,
    job: &mut Job,
    group: &[usize],
    inputs: &[Vec<u32>],
    tape: &mut GradientTape,
) -> Result<()> {
    // Compute the last MLP and the logits only for the tokens that a gradient needs.
    job.demand.last_mlp_everywhere = false;
    let parts = group.iter().map(|&row| RowTokens { job: 0, row, tokens: &inputs[row] });
    executor.pass(&mut [job], parts, false, Some(&mut tape.retained))?;
    tape.retained.move_to_host(executor.model().backend().memory())
}

/// Runs one backward pass per metric of the plan; returns the captured gradients.
pub(crate) fn backward(executor: &mut Executor, job: &mut Job, tapes: &[GradientTape]) -> Result<Vec<Capture>> {
    let (model, compiled) = (executor.model().clone(), job.compiled.clone());
    let mut captures = Vec::new();
    for metric in 0..if tapes.is_empty() { 0 } else { compiled.values.metrics.len() } {
        let mut taps = BackwardTaps::new(&model, &compiled, metric, job.collector.store())?;
        // Rows of a later group may have read values of an earlier one: go in reverse order.
        for tape in tapes.iter().rev() {
            run_backward(executor, job, tape, &mut taps)?;
        }
        captures.append(&mut taps.end());
        job.collector.end_gradient(&model, &compiled, metric)?;
    }
    captures.sort_by_key(|(entry, capture)| (*entry, capture.row));
    Ok(captures.into_iter().map(|(_, capture)| capture).collect())
}
