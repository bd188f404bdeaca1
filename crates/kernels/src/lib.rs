//! CPU mathematics of Pellucid: it knows numbers, threads and memory, and no model.
//!
//! One rule shapes everything here: **a row's result does not depend on its neighbours**. Every matrix product uses one
//! panel layout ([`matrix`]) and one order of accumulation (each output is a single chain of fused multiply-adds
//! over the inner dimension) whether one row or thousands are multiplied; attention ([`attention`]) tiles keys by
//! absolute position; threads ([`pool`]) split outputs, never sums. So a row has the same bits alone, in a batch,
//! in chunks or decoded token by token.
//!
//! | module | what it holds |
//! |---|---|
//! | [`simd`] | vectors of f32, with AVX-512, AVX2 and portable implementations chosen at run time |
//! | [`pool`] | worker threads that spin, then park |
//! | [`memory`] | cache-line aligned storage, and huge pages that weights share |
//! | [`encoding`] | how weights are stored in files: f32, f16, bf16 and the ggml block formats |
//! | [`matrix`], [`matmul`](mod@matmul), [`turned`] | weights in panels, their products, and the products of gradients |
//! | [`attention`] | keys and values in panels, fused and explicit attention |
//! | [`recurrence`], [`recurrence_back`] | states carried from token to token, short convolutions; their gradients |
//! | [`norm`], [`activation`], [`rope`], [`softmax`](mod@softmax), [`elementwise`] | everything between the products |

pub mod activation;
pub mod attention;
pub mod elementwise;
pub mod encoding;
mod formats;
mod groups;
pub mod matmul;
pub mod matrix;
pub mod memory;
mod narrow;
pub mod norm;
pub mod pool;
pub mod recurrence;
pub mod recurrence_back;
pub mod rope;
pub mod simd;
mod slab;
pub mod softmax;
mod tile;
pub mod turned;

pub use matmul::matmul;
pub use matrix::{DType, Matrix};
pub use pool::Pool;
pub use turned::matmul_turned;
