//! Gradients: the op list walked backward.
//!
//! A forward pass with a gradient keeps a `GradientTape` (`tape.rs`): of each op between the wanted sites and the last seeded one, the
//! inputs that its derivative needs, as the taps left them, and nothing else; products need none. Then `walk` (`walk.rs`) goes from
//! the last op to the first. The gradient of an edge is complete when the op that made it is reached, since every op that read the
//! edge lies behind; it is shown to the `Cotangents`, which read it, change it or add to it, and handed on to the op's inputs. The
//! derivatives are in one file for each kind of op: `products.rs`, `norms.rs`, `pointwise.rs`, `arrange.rs`, `attention.rs`,
//! `experts.rs`, `recurrence.rs`. Weights get their share on the way, where their gradient is wanted (`weights.rs`).
//!
//! Choices (of experts, and of keys that a query keeps) are constants.
//!
//! A plan with metrics runs them through its own taps (`taps.rs`); [`Model::vjp`](crate::Model::vjp) (`vjp.rs`) is the mechanism by
//! itself. `through.rs` runs some of the ops on given vectors, forward and backward.

mod arrange;
mod attention;
mod experts;
mod norms;
mod pointwise;
mod products;
mod recurrence;
mod tape;
mod taps;
mod through;
mod vjp;
mod walk;
mod weights;

pub(crate) use tape::GradientTape;
use taps::TapsBack;
pub use vjp::{GradOptions, Seed};
use walk::walk;

use crate::error::Result;
use crate::exec::{Executor, RowTokens};
use crate::job::{Job, Pass, Segment};
use crate::plan::Capture;
use crate::program::{EdgeId, Program};
use crate::weights::WeightId;

/// Meets each edge's gradient once it is complete and before it flows on: reads it, changes it, adds to it.
pub(crate) trait Cotangents {
    /// The gradient of a weight so far, in the weight's own order, if it is wanted.
    fn weight(&mut self, _: WeightId) -> Option<&mut Vec<f32>> {
        None
    }

    /// Whether an edge's gradient is to be met, even where it is nothing.
    fn touches(&self, edge: EdgeId) -> bool;

    /// The same for one row; an attention edge is made only for the rows that somebody touches.
    fn touches_row(&self, edge: EdgeId, row: usize) -> bool;

    /// The gradient of an edge, `[tokens, width]`.
    fn meet(&mut self, program: &Program, pass: &Pass, edge: EdgeId, gradient: &mut [f32]) -> Result<()>;

    /// The gradient of an attention edge for one row, `[heads, queries, keys]`.
    fn meet_attention(
        &mut self,
        program: &Program,
        segment: &Segment,
        edge: EdgeId,
        gradient: &mut [f32],
    ) -> Result<()>;
}

/// Runs the whole prompts of a group, rows of a job that run together, and keeps on the tape what the backward pass needs.
pub(crate) fn record(
    executor: &mut Executor,
    job: &mut Job,
    group: &[usize],
    inputs: &[Vec<u32>],
    tape: &mut GradientTape,
) -> Result<()> {
    // The end of the model is computed only for the tokens that a gradient needs.
    job.demand.last_mlp_everywhere = false;
    let parts = group.iter().map(|&row| RowTokens { job: 0, row, tokens: &inputs[row] });
    executor.pass(&mut [job], parts, false, Some(&mut tape.kept))?;
    tape.kept.move_to_host(executor.model().backend().memory())
}

/// One backward pass for each metric of the plan; returns what the plan captures of the gradients.
pub(crate) fn backward(executor: &mut Executor, job: &mut Job, tapes: &[GradientTape]) -> Result<Vec<Capture>> {
    let (model, compiled) = (executor.model().clone(), job.compiled.clone());
    let mut captures = Vec::new();
    for metric in 0..if tapes.is_empty() { 0 } else { compiled.values.metrics.len() } {
        let mut taps = TapsBack::new(&model, &compiled, metric, job.collector.store())?;
        // Rows of a later group may have read values of an earlier one, so the last group goes first.
        for tape in tapes.iter().rev() {
            walk(executor, job, tape, &mut taps)?;
        }
        captures.append(&mut taps.end());
        job.collector.end_gradient(&model, &compiled, metric)?;
    }
    captures.sort_by_key(|(entry, capture)| (*entry, capture.row));
    Ok(captures.into_iter().map(|(_, capture)| capture).collect())
}
