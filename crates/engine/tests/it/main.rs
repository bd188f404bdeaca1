//! The tests of the crate, in one binary: models of random architectures against an oracle in double precision, and networks made by hand.

// Helpers.
mod oracle;
mod random;

// Tests.
mod architectures;
mod gradients;
mod network;
