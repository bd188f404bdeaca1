//! Gradients: the op list walked backwards.
//!
//! A forward pass that is to have a gradient keeps a `Tape` (`tape.rs`): of each op between the wanted sites and the last seeded one,
//! the inputs that its derivative needs, as the taps left them, and nothing else; products need none. Then `walk` (`walk.rs`) goes from
//! the last op to the first. The gradient of an edge is complete when the op that made it is reached, since all that read it lie behind;
//! it is shown to the `Cotangents`, who read it, change it or add to it, and handed on to what the op has read. How, is said for
//! each kind of op in a file of its own: `products.rs`, `norms.rs`, `pointwise.rs`, `arrange.rs`, `attention.rs`, `experts.rs`,
//! `recurrence.rs`. Weights get their share on the way, if somebody has asked for their gradient (`weights.rs`).
//!
//! Choices (of experts, and of keys that a query keeps) are constants.
//!
//! A plan with metrics runs them through its own taps (`taps.rs`); [`Model::vjp`](crate::Model::vjp) (`vjp.rs`) is the mechanism by
//! itself.

mod arrange;
mod attention;
mod experts;
mod norms;
mod pointwise;
mod products;
mod recurrence;
mod tape;
mod taps;
mod vjp;
mod walk;
mod weights;

pub(crate) use tape::Tape;
pub(crate) use taps::TapsBack;
pub use vjp::{GradOptions, Seed};
pub(crate) use walk::walk;

use crate::error::Result;
use crate::exec::{Pass, Segment};
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
