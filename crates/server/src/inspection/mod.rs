//! Looking into a request: its plan, its captures on the wire, and what is kept of them.
//!
//! A plan over HTTP is data: it names no files and has no callbacks. `plan_fields.rs` makes the
//! plan of a request, `standing.rs` keeps plans that are registered once, `arrays.rs` writes arrays
//! as safetensors or as base64 in JSON, and `store.rs` keeps captures until they are fetched.

pub mod arrays;
pub mod examples;
mod outcome;
mod plan_fields;
mod standing;
mod store;

pub use arrays::{ArrayObject, CaptureLines};
pub use outcome::{CaptureInfo, Inspection};
pub use plan_fields::{PlanFields, refuse_files};
pub use standing::{StandingPlan, StandingPlans};
pub use store::{CaptureStore, StoredCaptures};
