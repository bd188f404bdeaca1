//! The tests of the crate, in one binary: golden models against transformers, promises about rows, plans and gradients, files good and bad.
//!
//! Golden cases and changed copies of them come from the crate `golden` (crates/golden).

// Helpers.
mod directories;
mod naive;
mod test_plans;

// Tests.
mod actions;
mod assume;
mod bad_input;
mod bad_model;
mod batch;
mod branches;
mod calls;
mod deferred;
mod docs;
mod explain;
mod families_bad;
mod generation;
mod gradients;
mod identify;
mod inspect;
mod inspect_bad;
mod inspect_kinds;
mod invariants;
mod metrics;
mod names;
mod parity;
mod pickles;
mod plans;
mod quantised;
mod real_weights;
mod repairs;
mod rows;
mod sae_layouts;
mod steps;
mod strategies;
mod sublayers;
mod tokenizer_forms;
mod values;
mod well_known;
mod writes;
