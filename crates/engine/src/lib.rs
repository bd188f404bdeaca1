//! The engine of Pellucid.
//!
//! **A model is a list of ops. The named edges between ops are the sites. Everything else reads that list.**
//!
//! An [`Architecture`] (plain data, from a family's `config.json`) becomes a [`Program`] (ops and edges). A [`Plan`] says what to see
//! and what to change; it is checked against the program before anything runs. A [`Model`] walks the list:
//!
//! | module | the part it plays |
//! |---|---|
//! | [`architecture`] | what a family says about itself |
//! | [`program`] | ops, edges, and the one place that knows a transformer's order |
//! | [`ids`] | the ids of edges, weights and values, and lists by them |
//! | [`point`], [`site`] | the names of everything that can be seen |
//! | [`plan`] | taps: selection and action, as data |
//! | `job` | rows that share a compiled plan: KV caches, captures |
//! | `exec` | the executor: packs jobs into passes and walks the op list |
//! | `run` | one forward pass under a plan |
//! | [`generate`] | decoding with the plan active at every step |
//! | [`lookup`] | drafts of what comes next, from what came before |
//! | [`prefix`] | beginnings of rows that later calls need not compute again |
//! | [`branch`] | re-runs from the middle of a run |
//! | [`grad`] | gradients: the op list walked backwards |
//! | [`backend`] | what executes ops: the trait, and the CPU |
//! | [`memory`] | values and KV caches in a backend's own memory |

pub mod architecture;
pub mod array;
pub mod backend;
pub mod branch;
#[cfg(feature = "deferred")]
pub mod deferred;
mod error;
mod exec;
mod explain;
pub mod generate;
pub mod grad;
pub mod ids;
mod interrupt;
mod job;
pub mod lookup;
pub mod memory;
mod model;
pub mod plan;
pub mod point;
pub mod prefix;
pub mod profile;
pub mod program;
mod run;
pub mod sample;
pub mod site;
mod value;
pub mod weights;

pub use architecture::Architecture;
pub use array::Array;
pub use branch::Base;
pub use error::{Error, Result};
pub use explain::Explanation;
pub use generate::{Batch, Control, Finish, GenerateOptions, Generated, Generation, RequestId};
pub use grad::{GradOptions, Seed};
pub use interrupt::Interrupt;
pub use job::{Pass, RowState, Saved, Segment};
pub use lookup::Lookup;
pub use model::{Model, WeakModel};
pub use plan::{Action, Callback, Capture, Operand, Phase, Plan, Positions, Reduce, Selected, Tap};
pub use point::Point;
pub use prefix::{PrefixCache, PrefixCounts};
pub use program::Program;
pub use run::{Run, RunOptions};
pub use sample::Sampling;
pub use site::Site;
pub use weights::{Weight, WeightKind, WeightSpec, Weights};
