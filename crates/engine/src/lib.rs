//! The engine of Pellucid.
//!
//! **A model is a list of ops. The named edges between ops are the sites. Everything else reads
//! that list.**
//!
//! An [`Architecture`] (plain data, from `config.json`) becomes a [`Program`] (ops and edges). A
//! [`Plan`] lists what to capture and what to change; it is checked against the program before
//! anything runs. A [`Model`] executes the list:
//!
//! | module | contents |
//! |---|---|
//! | [`architecture`] | description of a model, as data |
//! | [`program`] | ops, edges, weights, and the builder that orders them |
//! | [`ids`] | typed ids of edges, weights and values, and vectors indexed by them |
//! | [`point`], [`site`] | names of the activations that a plan can tap |
//! | [`adapter`] | low-rank adapters that rows use without merging them |
//! | [`plan`] | taps (site, selection, action) and values, as data |
//! | `job` | rows that share a compiled plan: KV caches, captures |
//! | `exec` | the executor: packs jobs into passes and runs the op list |
//! | `run` | one forward pass under a plan |
//! | [`generate`] | decoding with the plan active at every step |
//! | [`prompt_lookup`] | speculative tokens for decoding, copied from earlier in the row |
//! | [`logprobs`] | log-probabilities of prompt and generated tokens |
//! | [`prefix`] | prefix cache: reuses the KV cache of prompts with a common start |
//! | [`branch`] | re-runs from the middle of a run |
//! | [`grad`] | gradients: the backward pass over the op list |
//! | [`backend`] | the trait that executes ops, and the CPU backend |
//! | [`memory`] | activations and KV caches in a backend's memory |
//! | [`mod@memory_limit`], `needed_memory` | the memory that a call may take, and what it will need |
//! | `error`, `remedy` | errors, and what the user can do about them |

pub mod adapter;
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
pub mod logprobs;
pub mod memory;
pub mod memory_limit;
mod model;
mod needed_memory;
mod non_finite;
pub mod plan;
pub mod point;
pub mod prefix;
pub mod profile;
pub mod program;
pub mod prompt_lookup;
mod remedy;
mod run;
pub mod sae;
pub mod sample;
pub mod schedule;
pub mod site;
mod value;
pub mod weights;

pub use adapter::{Adapter, LinearUpdate, LowRank, RowAdapters};
pub use architecture::Architecture;
pub use array::{Array, CaptureDtype, SparseRows};
pub use branch::Base;
pub use error::{Error, Result};
pub use explain::Explanation;
pub use generate::{Batch, Control, Finish, GenerateOptions, GeneratedRow, Generation, RequestId};
pub use grad::{GradOptions, Seed};
pub use interrupt::Interrupt;
pub use job::{CaptureOptions, Pass, RowState, SavedValue, Segment};
pub use logprobs::{LogSoftmax, LogprobOptions, RowLogprobs, TokenLogprobs};
pub use memory_limit::{MemoryLimit, memory_limit, set_memory_limit};
pub use model::{Model, TranscoderLayer, WeakModel};
pub use needed_memory::check_memory;
pub use non_finite::NonFinite;
#[doc(hidden)]
pub use plan::SelectedRow as Selected;
pub use plan::{
    Action, Callback, Capture, Mark, Operand, Phase, Plan, Positions, Reduce, SelectedRow, Splice, SteeringSpec, Tap,
    When,
};
pub use point::Point;
pub use prefix::{PrefixCache, PrefixCounts};
pub use program::Program;
pub use prompt_lookup::LookupStats;
pub use remedy::Remedy;
pub use run::{NanOrigin, Run, RunOptions};
pub use sae::{AttachedSae, Sae};
pub use sample::Sampling;
pub use schedule::{
    Load, OnEnd, OnToken, PassRecord, PassShare, Request, RequestHandle, RequestMemory, RowToken, Scheduler,
    SchedulerOptions,
};
pub use site::{SaePart, Site};
pub use weights::{Weight, WeightKind, WeightSpec, Weights};

// Former names, for programs that still use them.
#[doc(hidden)]
pub use generate::GeneratedRow as Generated;
#[doc(hidden)]
pub use job::SavedValue as Saved;
#[doc(hidden)]
pub use prompt_lookup::{self as lookup, LookupStats as Lookup};
