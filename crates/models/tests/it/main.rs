//! Integration tests of pellucid-models, in one binary: golden models against transformers,
//! guarantees about rows, plans and gradients, and valid and malformed files.
//!
//! Golden cases and modified copies of them come from the crate `golden` (crates/golden).

// Helpers.
mod directories;
mod gguf_files;
mod naive;
mod test_plans;

// Tests.
mod actions;
mod adapters;
mod agreement;
mod assume;
mod bad_input;
mod bad_model;
mod batch;
mod branches;
mod calls;
mod captures;
mod changed_files;
mod conditions;
mod deferred;
mod docs;
mod experts;
mod explain;
mod families_bad;
mod forecast;
mod generation;
mod gradients;
mod hostile_plans;
mod identify;
mod inspect;
mod inspect_bad;
mod inspect_kinds;
mod invariants;
mod metrics;
mod name_variants;
mod names;
mod non_finite;
mod outline;
mod parity;
mod pickles;
mod plans;
mod quantized;
mod random_plans;
mod real_weights;
mod rows;
mod sae_layouts;
mod saes;
mod schedule;
mod schedule_properties;
mod steering;
mod steps;
mod strategies;
mod sublayers;
mod tokenizer_forms;
mod values;
mod well_known;
mod writes;
