//! Evaluates the expressions of a plan, on demand.
//!
//! `compute.rs` evaluates one expression, `derivative.rs` differentiates it. `store.rs` holds the
//! arrays that taps have read and evaluates the rest on demand; `backward.rs` propagates gradients
//! from values to those arrays.

mod backward;
mod compute;
mod derivative;
mod store;

pub(crate) use backward::ValueGradients;
pub(crate) use compute::compute;
pub(crate) use derivative::{differentiate, sum_to_shape};
pub(crate) use store::ValueStore;

use crate::array::Array;
use crate::error::Result;
use crate::plan::OpRange;
use pellucid_kernels::Pool;

/// Runs ops of the model on arrays, for the expressions `through` and `unembed`. A trait, so that
/// this module does not depend on the executor.
pub(crate) trait OpRunner {
    /// The thread pool of the run.
    fn pool(&self) -> &Pool;

    /// Runs the ops on `[…, width]` at their first site. The vectors are the tokens of one row,
    /// from position 0 on.
    fn forward(&self, ops: &OpRange, of: &Array) -> Result<Array>;

    /// Propagates a gradient from the last site to the first; `of` is the input of the forward
    /// pass.
    fn backward(&self, ops: &OpRange, of: &Array, gradient: &Array) -> Result<Array>;
}
