//! Tests of sessions on the built-in model with its own autoencoder.

mod bad_input;
mod concepts;
mod graphs;
mod helpers;
mod padding;
mod resume;
mod stores;
mod unread_saes;
mod workloads;
