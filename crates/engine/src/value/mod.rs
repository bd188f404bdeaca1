//! Values at work: the expressions of a plan, evaluated when they are needed.
//!
//! `compute.rs` gives the value of an expression, `derive.rs` its derivatives; `store.rs` keeps what taps have read and evaluates the
//! rest on demand, `back.rs` takes gradients the other way.

mod back;
mod compute;
mod derive;
mod store;

pub(crate) use back::Back;
pub(crate) use compute::compute;
pub(crate) use derive::{derive, unspread};
pub(crate) use store::Store;

use crate::array::Array;
use crate::error::Result;
use crate::plan::Stretch;

/// Runs ops of the model on arrays, for the expressions `through` and `unembed`. The executor implements it, and this module does
/// not depend on the executor.
pub(crate) trait OpRunner {
    /// What the ops make of `[…, width]` at their first site. The vectors are the tokens of one row, from position 0 on.
    fn forward(&self, ops: &Stretch, of: &Array) -> Result<Array>;

    /// The gradient at the first site that follows from one at the last.
    fn backward(&self, ops: &Stretch, of: &Array, gradient: &Array) -> Result<Array>;
}
