//! Backward passes: from the gradient of reconstructions to those of activations,
//! pre-activations and inputs.
//!
//! A gradient flows through a feature where the feature is active. The choice of the active
//! features has no gradient of its own.

use super::decode::add_rows;
use super::{ActiveFeatures, Sae, SaeKind, TokenScales, each_token_range};
use pellucid_kernels::elementwise::scale;
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::sparse::fused_dot;
use pellucid_kernels::{DType, Matrix, Pool, matmul, matmul_transposed};
use std::sync::Mutex;

/// A token with more gradients of pre-activations than one in so many features is multiplied with
/// the whole encoder: reading single rows of the packed encoder costs more per row.
const DENSE_SHARE: usize = 16;
/// Tokens of one such product, which bounds its scratch memory.
const DENSE_TOKENS: usize = 64;

/// Rows of a decoder that are in memory at a time.
pub(super) const BLOCK_ROWS: usize = 4096;

impl Sae {
    /// Computes `d_acts [tokens, n_features]` from `d_recon [tokens, d_out]` of decoder `index`.
    ///
    /// With `active_only`, a feature whose activation is zero gets gradient 0, and the cost follows
    /// the active features. Otherwise every feature gets its gradient: the effect on the
    /// reconstruction of making it active.
    #[allow(clippy::too_many_arguments)] // the arrays of one step
    pub fn decode_backward(
        &self,
        pool: &Pool,
        index: usize,
        acts: &[f32],
        scales: &TokenScales,
        d_recon: &[f32],
        active_only: bool,
        d_acts: &mut [f32],
    ) {
        let (n, decoder) = (self.n_features(), &self.decoders[index]);
        let (tokens, width) = (d_acts.len() / n, decoder.cols());
        assert!(acts.len() == d_acts.len() && d_recon.len() == tokens * width, "gradients of as many tokens");
        if !active_only {
            let mut scaled = d_recon.to_vec();
            for (token, d_recon) in scaled.chunks_exact_mut(width).enumerate() {
                scale(d_recon, self.undo_factor(token, scales));
            }
            return match decoder.is_on_demand() {
                true => matmul_in_blocks(pool, &scaled, decoder, d_acts),
                false => matmul(pool, &scaled, decoder, None, d_acts),
            };
        }
        let shared = DisjointMut::new(d_acts);
        each_token_range(pool, tokens, &|range| {
            let (mut active, mut row) = (ActiveFeatures::default(), vec![0.0; width]);
            for token in range {
                // SAFETY: each task has its own tokens.
                let d_acts = unsafe { shared.part(token * n, n) };
                d_acts.fill(0.0);
                let (d_recon, factor) = (&d_recon[token * width..][..width], self.undo_factor(token, scales));
                active.set_from_dense(&acts[token * n..][..n]);
                for (feature, _) in active.iter() {
                    d_acts[feature] = decoder.dot_row(feature, d_recon, &mut row) * factor;
                }
            }
        });
    }

    /// Adds to `d_acts` of tokens `lines`, `[…, n_features]`, the gradient of the reconstruction of
    /// a later layer by decoder `index`: `d_recon [tokens, d_out]`.
    ///
    /// With `active`, only features that are active at their token get a gradient, as in
    /// [`decode_backward`](Self::decode_backward).
    pub fn add_decoded_backward(
        &self,
        pool: &Pool,
        index: usize,
        (lines, active): (&[usize], Option<&[ActiveFeatures]>),
        d_recon: &[f32],
        d_acts: &mut [f32],
    ) {
        let (n, decoder) = (self.n_features(), &self.decoders[index]);
        let width = decoder.cols();
        assert_eq!(d_recon.len(), lines.len() * width, "gradients of as many tokens");
        let shared = DisjointMut::new(d_acts);
        each_token_range(pool, lines.len(), &|range| {
            let mut row = vec![0.0; width];
            for token in range {
                let d_recon = &d_recon[token * width..][..width];
                if d_recon.iter().all(|&g| g == 0.0) {
                    continue;
                }
                let line = lines[token];
                // SAFETY: the lines of tokens differ.
                let d_acts = unsafe { shared.part(line * n, n) };
                let mut add = |feature: usize| d_acts[feature] += decoder.dot_row(feature, d_recon, &mut row);
                match active {
                    Some(active) => active[line].iter().for_each(|(feature, _)| add(feature)),
                    None => (0..n).for_each(add),
                }
            }
        });
    }

    /// Adds to `d_x` the gradient of reconstructions through the scales of their tokens: the
    /// reconstruction of an autoencoder with `UnitNorm` or `LayerNorm` is multiplied by the scale
    /// of `x`. Does nothing for other normalizations.
    #[allow(clippy::too_many_arguments)] // the arrays of one step
    pub fn undo_backward(
        &self,
        pool: &Pool,
        index: usize,
        x: &[f32],
        acts: &[f32],
        scales: &TokenScales,
        d_recon: &[f32],
        d_x: &mut [f32],
    ) {
        if !self.undoes_token_scales() {
            return;
        }
        let (n, d, width) = (self.n_features(), self.d_in(), self.decoders[index].cols());
        let shared = DisjointMut::new(d_x);
        each_token_range(pool, x.len() / d, &|range| {
            let (mut active, mut y) = (ActiveFeatures::default(), vec![0.0; width]);
            for token in range {
                active.set_from_dense(&acts[token * n..][..n]);
                self.decode_token(index, &active, &mut y);
                let (x, d_recon) = (&x[token * d..][..d], &d_recon[token * width..][..width]);
                // SAFETY: each task has its own tokens.
                let d_x = unsafe { shared.part(token * d, d) };
                self.undo_token_backward(token, x, scales, d_recon, fused_dot(&y, d_recon), d_x);
            }
        });
    }

    /// Computes `d_pre [tokens, n_features]` from `d_acts`; `acts` are the activations that
    /// [`activate`](Self::activate) returned, before any edit.
    pub fn activate_backward(&self, pool: &Pool, acts: &[f32], d_acts: &[f32], d_pre: &mut [f32]) {
        let n = self.n_features();
        assert!(acts.len() == d_acts.len() && acts.len() == d_pre.len(), "gradients of as many tokens");
        let shared = DisjointMut::new(d_pre);
        each_token_range(pool, acts.len() / n, &|range| {
            let mut active = ActiveFeatures::default();
            for token in range {
                // SAFETY: each task has its own tokens.
                let d_pre = unsafe { shared.part(token * n, n) };
                d_pre.fill(0.0);
                self.find_d_pre(&acts[token * n..][..n], &d_acts[token * n..][..n], &mut active);
                active.iter().for_each(|(feature, gradient)| d_pre[feature] = gradient);
            }
        });
    }

    /// Adds to `d_x [tokens, d_in]` the gradient through activation, encoder and normalization,
    /// from `d_acts [tokens, n_features]`; `acts` as in
    /// [`activate_backward`](Self::activate_backward).
    pub fn encode_backward(
        &self,
        pool: &Pool,
        x: &[f32],
        acts: &[f32],
        scales: &TokenScales,
        d_acts: &[f32],
        d_x: &mut [f32],
    ) {
        let n = self.n_features();
        let find = |token: usize, active: &mut ActiveFeatures| {
            self.find_d_pre(&acts[token * n..][..n], &d_acts[token * n..][..n], active);
        };
        self.add_encoder_gradient(pool, x, scales, &find, d_x);
    }

    /// Adds to `d_x [tokens, d_in]` the gradient through encoder and normalization, from
    /// `d_pre [tokens, n_features]`, which may be nonzero at inactive features too.
    pub fn pre_backward(&self, pool: &Pool, x: &[f32], scales: &TokenScales, d_pre: &[f32], d_x: &mut [f32]) {
        let n = self.n_features();
        let find = |token: usize, active: &mut ActiveFeatures| active.set_from_dense(&d_pre[token * n..][..n]);
        self.add_encoder_gradient(pool, x, scales, &find, d_x);
    }

    /// Adds to `d_x [tokens, d_in]` the gradient through the skip path, if there is one.
    pub fn skip_backward(&self, pool: &Pool, d_recon: &[f32], d_x: &mut [f32]) {
        if let Some(skip) = &self.skip {
            matmul_transposed(pool, d_recon, skip, true, d_x);
        }
    }

    /// Finds the nonzero gradients of one token's pre-activations.
    fn find_d_pre(&self, acts: &[f32], d_acts: &[f32], active: &mut ActiveFeatures) {
        active.set_from_dense(acts);
        let ActiveFeatures { indices, values } = active;
        for (&feature, value) in indices.iter().zip(values) {
            let feature = feature as usize;
            let derivative = match &self.kind {
                SaeKind::Gated { log_scale, .. } => log_scale[feature].exp(),
                _ => 1.0,
            };
            *value = d_acts[feature] * derivative;
        }
    }

    /// Adds to `d_x` the gradient of pre-activations that `find(token, …)` returns.
    fn add_encoder_gradient(
        &self,
        pool: &Pool,
        x: &[f32],
        scales: &TokenScales,
        find: &(dyn Fn(usize, &mut ActiveFeatures) + Sync),
        d_x: &mut [f32],
    ) {
        let (d, n) = (self.d_in(), self.n_features());
        assert_eq!(x.len(), d_x.len(), "gradients of as many tokens");
        let dense_tokens = Mutex::new(Vec::new());
        let shared = DisjointMut::new(d_x);
        each_token_range(pool, x.len() / d, &|range| {
            let (mut active, mut d_u) = (ActiveFeatures::default(), vec![0.0; d]);
            for token in range {
                find(token, &mut active);
                if active.indices.len() > n / DENSE_SHARE {
                    dense_tokens.lock().expect("no task panics").push(token);
                    continue;
                }
                add_rows(&self.encoder, &active, &mut d_u);
                // SAFETY: each task has its own tokens.
                let d_x = unsafe { shared.part(token * d, d) };
                self.normalize_token_backward(token, &x[token * d..][..d], scales, &d_u, d_x);
            }
        });
        // Together, because the encoder is transposed once for each product.
        let dense_tokens = dense_tokens.into_inner().expect("no task panics");
        for tokens in dense_tokens.chunks(DENSE_TOKENS) {
            let (mut d_pre, mut d_u) = (vec![0.0; tokens.len() * n], vec![0.0; tokens.len() * d]);
            let mut active = ActiveFeatures::default();
            for (&token, d_pre) in tokens.iter().zip(d_pre.chunks_exact_mut(n)) {
                find(token, &mut active);
                active.iter().for_each(|(feature, gradient)| d_pre[feature] = gradient);
            }
            matmul_transposed(pool, &d_pre, &self.encoder, false, &mut d_u);
            for (&token, d_u) in tokens.iter().zip(d_u.chunks_exact(d)) {
                let part = token * d..(token + 1) * d;
                self.normalize_token_backward(token, &x[part.clone()], scales, d_u, &mut d_x[part]);
            }
        }
    }
}

/// Computes `x [tokens, width]` times all rows of a decoder that is read on demand, with the bits
/// of `matmul`.
pub(super) fn matmul_in_blocks(pool: &Pool, x: &[f32], decoder: &Matrix, out: &mut [f32]) {
    let (rows, width) = (decoder.rows(), decoder.cols());
    for first in (0..rows).step_by(BLOCK_ROWS) {
        let count = BLOCK_ROWS.min(rows - first);
        let block = Matrix::pack(pool, count, width, DType::F32, &|row, out| decoder.row(first + row, out));
        let mut products = vec![0.0; x.len() / width * count];
        matmul(pool, x, &block, None, &mut products);
        for (out, products) in out.chunks_exact_mut(rows).zip(products.chunks_exact(count)) {
            out[first..first + count].copy_from_slice(products);
        }
    }
}
