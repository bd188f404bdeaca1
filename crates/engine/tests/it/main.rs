//! Integration tests of the crate, in one binary: models of random architectures against an f64
//! oracle, and hand-built networks.

// Helpers.
mod oracle;
mod random;

// Tests.
mod architectures;
mod gradients;
mod network;
