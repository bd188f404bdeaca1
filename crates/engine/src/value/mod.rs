//! Values at work: the expressions of a plan, evaluated when somebody needs them.
//!
//! `shape.rs` says what shape an expression takes, `compute.rs` what it is, `derive.rs` what its gradient means for its inputs;
//! `store.rs` keeps what taps have read and evaluates the rest on demand, `back.rs` takes gradients the other way; `stretch.rs` runs the
//! model's own ops on values.

mod back;
mod compute;
mod derive;
mod index;
pub(crate) mod shape;
mod store;
mod stretch;

pub(crate) use back::Back;
pub(crate) use compute::compute;
pub(crate) use derive::{derive, unspread};
pub(crate) use store::Store;
pub(crate) use stretch::run as stretch;
