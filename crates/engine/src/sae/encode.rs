//! Encoding: normalized input times encoder, and the fused path that keeps no dense activations.

use super::{ActiveFeatures, InputNormalization, Sae, SaeKind, TokenScales, each_token_range};
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::{Pool, matmul};

/// Tokens that the fused path encodes at a time. The encoder is read once for each chunk, so more
/// tokens make it faster; the scratch memory holds their pre-activations.
pub(crate) const CHUNK_TOKENS: usize = 64;

impl Sae {
    /// Computes pre-activations: `x [tokens, d_in]` → `pre [tokens, n_features]`, that is
    /// `u W_encᵀ + b_enc` (gated: `u W_encᵀ`) of the normalized input `u`.
    pub fn encode(&self, pool: &Pool, x: &[f32], pre: &mut [f32]) -> TokenScales {
        assert_eq!(x.len() / self.d_in(), pre.len() / self.n_features(), "as many tokens in as out");
        let bias = match self.kind {
            SaeKind::Gated { .. } => None,
            _ => Some(&self.encoder_bias[..]),
        };
        if self.normalization == InputNormalization::None && !self.subtract_decoder_bias {
            matmul(pool, x, &self.encoder, bias, pre);
            return TokenScales::default();
        }
        let mut u = vec![0.0; x.len()];
        let scales = self.normalize(x, &mut u);
        matmul(pool, &u, &self.encoder, bias, pre);
        scales
    }

    /// Finds the active features of every token without keeping dense activations: calls
    /// `each(token, its active features)`, in any order and from any thread of `pool`.
    pub fn encode_active(&self, pool: &Pool, x: &[f32], each: &(dyn Fn(usize, &ActiveFeatures) + Sync)) -> TokenScales {
        let (d, n) = (self.d_in(), self.n_features());
        let tokens = x.len() / d;
        let mut pre = vec![0.0; CHUNK_TOKENS.min(tokens) * n];
        let mut scales = TokenScales::default();
        for (chunk, x) in x.chunks(CHUNK_TOKENS * d).enumerate() {
            let pre = &mut pre[..x.len() / d * n];
            scales.append(self.encode(pool, x, pre));
            let pre = &*pre;
            each_token_range(pool, x.len() / d, &|range| {
                let (mut active, mut scores) = (ActiveFeatures::default(), Vec::new());
                for token in range {
                    self.find_active(&pre[token * n..][..n], &mut scores, &mut active);
                    each(chunk * CHUNK_TOKENS + token, &active);
                }
            });
        }
        scales
    }

    /// Returns the active features of every token, without memory for dense activations.
    pub fn active_features(&self, pool: &Pool, x: &[f32]) -> (Vec<ActiveFeatures>, TokenScales) {
        let mut all = vec![ActiveFeatures::default(); x.len() / self.d_in()];
        let shared = DisjointMut::new(&mut all);
        let scales = self.encode_active(pool, x, &|token, active| {
            // SAFETY: each token is passed once.
            let own = unsafe { shared.part(token, 1) };
            own[0].clone_from(active);
        });
        (all, scales)
    }

    /// Reconstructs `x [tokens, d_in]` with decoder 0 into `recon [tokens, d_out]`. The bits are
    /// those of [`encode`](Self::encode), [`activate`](Self::activate) and
    /// [`decode`](Self::decode), without memory for the activations of all tokens.
    pub fn reconstruct(&self, pool: &Pool, x: &[f32], recon: &mut [f32]) {
        let width = self.d_out();
        assert_eq!(x.len() / self.d_in(), recon.len() / width, "as many tokens in as out");
        let shared = DisjointMut::new(recon);
        let scales = self.encode_active(pool, x, &|token, active| {
            // SAFETY: each token is passed once.
            self.decode_token(0, active, unsafe { shared.part(token * width, width) });
        });
        self.finish_recon(pool, 0, &scales, x, recon);
    }
}
