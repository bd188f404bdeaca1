//! Sparse autoencoders and transcoders: their weights, and their forward and backward arithmetic.
//!
//! A [`Sae`] reads activations of width `d_in`, turns them into the activations of many features,
//! most of them zero, and reconstructs activations of width `d_out` from these. An autoencoder
//! reconstructs what it reads. A transcoder reads the input of an MLP and reconstructs its output;
//! a cross-layer transcoder does so for several layers, with one decoder for each.
//!
//! Notation: tokens `x [tokens, d_in]`, pre-activations `pre [tokens, n_features]`, activations
//! `acts [tokens, n_features]`, reconstruction `recon [tokens, d_out]`.
//!
//! | file | step |
//! |---|---|
//! | `normalize.rs` | input normalization, its inverse, their backward passes |
//! | `encode.rs` | `x` → `pre`: a dense product |
//! | `activate.rs` | `pre` → `acts`, as a list of active features of each token |
//! | `decode.rs` | `acts` → `recon`, from the active features only |
//! | `backward.rs` | gradients of `acts`, `pre` and `x` |
//! | `features.rs` | features of a pass that later layers decode |
//! | `fold.rs`, `check.rs` | exact rescaling of features; consistency of the parts |
//!
//! Encoding is a dense product with every feature; all other steps cost in proportion to the
//! active features. Every sum belongs to one token and has one order, so a token has the same bits
//! alone and among others, on any number of threads.

mod activate;
mod attached;
mod backward;
mod check;
mod decode;
mod encode;
mod features;
mod fold;
mod kind;
mod normalize;
#[cfg(test)]
mod tests;

pub use activate::ActiveFeatures;
pub use attached::AttachedSae;
pub(crate) use encode::CHUNK_TOKENS;
pub(crate) use features::{LayerFeatures, features_of_dense};
pub use kind::{InputNormalization, SaeKind};
pub use normalize::TokenScales;

use pellucid_kernels::{Matrix, Pool};
use std::ops::Range;

/// A sparse autoencoder or transcoder in its runtime format.
pub struct Sae {
    /// From pre-activations to activations.
    pub kind: SaeKind,
    /// How inputs are scaled before encoding.
    pub normalization: InputNormalization,
    /// Scale reconstructions back with the scales of the input. True for autoencoders; false for
    /// transcoders, whose outputs live at another site.
    pub undo_normalization: bool,
    /// Subtract the (first) decoder bias from the input before encoding.
    pub subtract_decoder_bias: bool,
    /// Encoder `W_enc`, packed: one row per feature, `[n_features, d_in]`.
    pub encoder: Matrix,
    /// Encoder bias `b_enc`, `[n_features]`; not read by a gated autoencoder.
    pub encoder_bias: Vec<f32>,
    /// Decoders `W_dec`, kept row by row: one row per feature, `[n_features, d_out]`. One, or one
    /// for each layer that a cross-layer transcoder or a crosscoder writes.
    pub decoders: Vec<Matrix>,
    /// Decoder biases `b_dec`, `[d_out]`, one for each decoder.
    pub decoder_biases: Vec<Vec<f32>>,
    /// Skip path of a transcoder, `[d_out, d_in]`, applied to the raw input and added to the
    /// reconstruction of the first decoder.
    pub skip: Option<Matrix>,
}

impl Sae {
    /// Number of features.
    pub fn n_features(&self) -> usize {
        self.encoder.rows()
    }

    /// Width of the activations that it reads.
    pub fn d_in(&self) -> usize {
        self.encoder.cols()
    }

    /// Width of the activations that it reconstructs.
    pub fn d_out(&self) -> usize {
        self.decoders[0].cols()
    }

    /// Its matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        self.decoders.iter().chain([&self.encoder]).chain(&self.skip)
    }

    /// Reads decoder rows from their file when a feature is active, instead of through its mapping:
    /// decoders that are used in place take no resident memory. Results do not change.
    pub fn read_decoders_on_demand(&mut self) {
        self.decoders.iter_mut().for_each(Matrix::read_on_demand);
    }

    /// Bytes of all weights, allocated or memory-mapped.
    pub fn bytes(&self) -> usize {
        let vectors = self.decoder_biases.iter().chain([&self.encoder_bias]).chain(self.kind.vectors());
        self.matrices().map(Matrix::bytes).sum::<usize>() + 4 * vectors.map(Vec::len).sum::<usize>()
    }
}

/// Runs `f` on ranges of tokens, on all threads.
fn each_token_range(pool: &Pool, tokens: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    // Small, because the number of active features differs between tokens.
    const TOKENS_PER_TASK: usize = 4;
    pool.run(tokens.div_ceil(TOKENS_PER_TASK), &|task| {
        f(task * TOKENS_PER_TASK..((task + 1) * TOKENS_PER_TASK).min(tokens));
    });
}
