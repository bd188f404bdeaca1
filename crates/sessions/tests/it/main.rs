//! Tests of sessions on the built-in model with its own autoencoder.

mod bad_input;
mod helpers;
mod resume;
mod stores;
mod workloads;
