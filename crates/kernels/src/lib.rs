//! CPU kernels of Pellucid: buffers, threads, matrix products, attention, norms, weight encodings.
//! This crate knows no model.
//!
//! One rule shapes everything here: **a row's result does not depend on its neighbors**. Every
//! matrix product uses one panel layout ([`matrix`]) and one order of accumulation (chains of 256
//! fused multiply-adds over the inner dimension, added in order) whether one row or thousands are
//! multiplied; attention ([`attention`]) tiles keys by absolute position; threads ([`pool`]) split
//! outputs, never sums. So a row has the same bits alone, in a batch, in chunks or decoded token by
//! token.
//!
//! | module | content |
//! |---|---|
//! | [`simd`] | vectors of f32: AVX-512, AVX2 and portable implementations, chosen at run time |
//! | [`pool`] | worker threads that spin, then park |
//! | [`memory`] | cache-line aligned buffers, and slabs of huge pages for weights |
//! | [`encoding`] | weight encodings of files: f32, f16, bf16 and the ggml block formats |
//! | [`matrix`], [`matmul`](mod@matmul), [`transposed`] | packed weights, their products, and the products of the backward pass |
//! | [`attention`] | KV cache, fused and unfused attention, their backward passes |
//! | [`recurrence`], [`recurrence_backward`] | recurrent states and short convolutions; their backward passes |
//! | [`sparse`] | scans and sums for vectors with few nonzero elements |
//! | [`norm`], [`activation`], [`rope`], [`softmax`](mod@softmax), [`elementwise`] | everything between the products |

pub mod activation;
pub mod attention;
pub mod elementwise;
pub mod encoding;
mod half_panels;
pub mod matmul;
pub mod matrix;
pub mod memory;
pub mod norm;
mod pack_columns;
pub mod pool;
mod quant_layout;
mod quant_panels;
pub mod recurrence;
pub mod recurrence_backward;
pub mod rope;
pub mod simd;
mod slab;
pub mod softmax;
pub mod sparse;
mod tile;
pub mod transposed;

pub use matmul::matmul;
pub use matrix::{DType, Matrix};
pub use pool::Pool;
pub use transposed::matmul_transposed;
