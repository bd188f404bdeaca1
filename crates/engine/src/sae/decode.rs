//! Decoding: the decoder rows of active features, scaled and summed.

use super::{ActiveFeatures, Sae, TokenScales, each_token_range};
use pellucid_kernels::elementwise::add;
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::{Matrix, Pool, matmul};

/// Rows in one chain of additions. Partial sums keep the precision of a token with thousands of
/// active features.
const CHAIN: usize = 256;

impl Sae {
    /// Reconstructs with decoder `index`: `acts [tokens, n_features]` → `recon [tokens, d_out]`.
    ///
    /// Visits only features that are not zero, in ascending order, and adds the decoder bias. Then
    /// it undoes the normalization (autoencoders only, see
    /// [`undo_normalization`](Self::undo_normalization)) and adds the skip path of `x`.
    pub fn decode(&self, pool: &Pool, index: usize, acts: &[f32], scales: &TokenScales, x: &[f32], recon: &mut [f32]) {
        let (n, width) = (self.n_features(), self.decoders[index].cols());
        let tokens = acts.len() / n;
        assert!(recon.len() == tokens * width && x.len() == tokens * self.d_in(), "as many tokens in as out");
        let shared = DisjointMut::new(recon);
        each_token_range(pool, tokens, &|range| {
            let mut active = ActiveFeatures::default();
            for token in range {
                active.set_from_dense(&acts[token * n..][..n]);
                // SAFETY: each task has its own tokens.
                self.decode_token(index, &active, unsafe { shared.part(token * width, width) });
            }
        });
        self.finish_recon(pool, index, scales, x, recon);
    }

    /// Like [`decode`](Self::decode), from the active features of each token.
    pub fn decode_active(
        &self,
        pool: &Pool,
        index: usize,
        active: &[ActiveFeatures],
        scales: &TokenScales,
        x: &[f32],
        recon: &mut [f32],
    ) {
        let width = self.decoders[index].cols();
        assert_eq!(recon.len(), active.len() * width, "as many tokens in as out");
        let shared = DisjointMut::new(recon);
        each_token_range(pool, active.len(), &|range| {
            for token in range {
                // SAFETY: each task has its own tokens.
                self.decode_token(index, &active[token], unsafe { shared.part(token * width, width) });
            }
        });
        self.finish_recon(pool, index, scales, x, recon);
    }

    /// Adds to `recon [tokens, d_out]` the contribution of decoder `index` to a later layer, for
    /// tokens with active features.
    pub fn add_decoded(&self, pool: &Pool, index: usize, active: &[Option<&ActiveFeatures>], recon: &mut [f32]) {
        let width = self.decoders[index].cols();
        assert_eq!(recon.len(), active.len() * width, "as many tokens in as out");
        let shared = DisjointMut::new(recon);
        each_token_range(pool, active.len(), &|range| {
            let mut decoded = vec![0.0; width];
            for token in range {
                let Some(active) = active[token] else { continue };
                self.decode_token(index, active, &mut decoded);
                // SAFETY: each task has its own tokens.
                add(unsafe { shared.part(token * width, width) }, &decoded);
            }
        });
    }

    /// Computes `Σ activation · decoder row + bias` of one token.
    pub(super) fn decode_token(&self, index: usize, active: &ActiveFeatures, out: &mut [f32]) {
        add_rows(&self.decoders[index], active, out);
        add(out, &self.decoder_biases[index]);
    }

    /// Undoes the normalization and adds the skip path, which belongs to the first decoder.
    pub(super) fn finish_recon(&self, pool: &Pool, index: usize, scales: &TokenScales, x: &[f32], recon: &mut [f32]) {
        let width = self.d_out();
        recon.chunks_exact_mut(width).enumerate().for_each(|(token, recon)| self.undo_token(token, scales, recon));
        if let Some(skip) = self.skip.as_ref().filter(|_| index == 0) {
            let mut skipped = vec![0.0; recon.len()];
            matmul(pool, x, skip, None, &mut skipped);
            add(recon, &skipped);
        }
    }
}

/// Computes `out = Σ value · row` over `rows`, in their order.
pub(super) fn add_rows(matrix: &Matrix, rows: &ActiveFeatures, out: &mut [f32]) {
    out.fill(0.0);
    let (mut row, mut partial) = (vec![0.0; matrix.cols()], Vec::new());
    for (chain, (indices, values)) in rows.indices.chunks(CHAIN).zip(rows.values.chunks(CHAIN)).enumerate() {
        // The first chain is summed in place.
        partial.resize(if chain == 0 { 0 } else { out.len() }, 0.0);
        let sum = if chain == 0 { &mut *out } else { &mut partial[..] };
        for (&index, &value) in indices.iter().zip(values) {
            matrix.add_scaled_row(index as usize, value, &mut row, sum);
        }
        if chain > 0 {
            add(out, &partial);
            partial.fill(0.0);
        }
    }
}
