//! Values at work: the expressions of a plan, evaluated when somebody needs them.
//!
//! `shape.rs` says what shape an expression takes, `compute.rs` what it is, `derive.rs` what its gradient means for its inputs;
//! `store.rs` keeps what taps have read and evaluates the rest on demand.

mod compute;
mod derive;
mod index;
pub(crate) mod shape;
mod store;
mod stretch;

pub(crate) use compute::compute;
pub(crate) use derive::{derive, gathered};
pub(crate) use store::Store;
pub(crate) use stretch::run as stretch;
