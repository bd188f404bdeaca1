//! Sparse autoencoders and transcoders: their weights, and what they compute on a few tokens.
//!
//! A [`Sae`] reads activations of width `d_in`, turns them into the activations of many features,
//! most of them zero, and reconstructs activations of width `d_out` from these. An autoencoder
//! reconstructs what it reads. A transcoder reads the input of an MLP and reconstructs its output;
//! a cross-layer transcoder does so for several layers, with one decoder for each.
//!
//! Notation: tokens `x [tokens, d_in]`, pre-activations `pre [tokens, n_features]`, activations
//! `acts [tokens, n_features]`, reconstruction `recon [tokens, d_out]`.

mod kind;

pub use kind::{InputNormalization, SaeKind};

use pellucid_kernels::Matrix;

/// A sparse autoencoder or transcoder in its runtime format.
pub struct Sae {
    /// From pre-activations to activations.
    pub kind: SaeKind,
    /// How inputs are scaled before encoding; reconstructions are scaled back.
    pub normalization: InputNormalization,
    /// Subtract the (first) decoder bias from the input before encoding.
    pub subtract_decoder_bias: bool,
    /// Encoder `W_enc`, packed: one row per feature, `[n_features, d_in]`.
    pub encoder: Matrix,
    /// Encoder bias `b_enc`, `[n_features]`; zeros for a gated autoencoder.
    pub encoder_bias: Vec<f32>,
    /// Decoders `W_dec`, kept row by row: one row per feature, `[n_features, d_out]`. One, or one
    /// for each layer that a cross-layer transcoder or a crosscoder writes.
    pub decoders: Vec<Matrix>,
    /// Decoder biases `b_dec`, `[d_out]`, one for each decoder.
    pub decoder_biases: Vec<Vec<f32>>,
    /// Skip path of a transcoder, `[d_out, d_in]`, applied to the raw input.
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
}
