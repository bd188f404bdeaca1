//! From pre-activations to activations: the active features of each token.

use super::{Sae, SaeKind, each_token_range};
use pellucid_kernels::Pool;
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::sparse;

/// The features of one token whose activation is not zero, in ascending order of their index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActiveFeatures {
    /// Indices of the features.
    pub indices: Vec<u32>,
    /// Their activations.
    pub values: Vec<f32>,
}

impl ActiveFeatures {
    /// Pairs of index and activation.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> {
        self.indices.iter().zip(&self.values).map(|(&index, &value)| (index as usize, value))
    }

    /// Sets these to the nonzero elements of dense activations.
    pub(crate) fn set_from_dense(&mut self, acts: &[f32]) {
        self.clear();
        sparse::indices_of_nonzero(acts, &mut self.indices);
        self.values.extend(self.indices.iter().map(|&i| acts[i as usize]));
    }

    fn clear(&mut self) {
        self.indices.clear();
        self.values.clear();
    }

    /// Sets the value of each index, dropping features whose activation is not positive. NaN stays.
    fn set_values(&mut self, value: impl Fn(usize) -> f32) {
        let values = &mut self.values;
        self.indices.retain(|&i| {
            let value = value(i as usize);
            let active = value > 0.0 || value.is_nan();
            if active {
                values.push(value);
            }
            active
        });
    }
}

impl Sae {
    /// Computes the activations from the pre-activations, in place: `[tokens, n_features]`.
    ///
    /// A NaN stays NaN: it passes every threshold, and TopK ranks it highest.
    pub fn activate(&self, pool: &Pool, pre: &mut [f32]) {
        let n = self.n_features();
        assert!(pre.len().is_multiple_of(n), "{} pre-activations of {n} features", pre.len());
        let tokens = pre.len() / n;
        let shared = DisjointMut::new(pre);
        each_token_range(pool, tokens, &|range| {
            let (mut active, mut scores) = (ActiveFeatures::default(), Vec::new());
            for token in range {
                // SAFETY: each task has its own tokens.
                let pre = unsafe { shared.part(token * n, n) };
                self.find_active(pre, &mut scores, &mut active);
                pre.fill(0.0);
                active.iter().for_each(|(i, value)| pre[i] = value);
            }
        });
    }

    /// Finds the active features of one token; `scores` is scratch memory.
    pub(super) fn find_active(&self, pre: &[f32], scores: &mut Vec<f32>, active: &mut ActiveFeatures) {
        active.clear();
        match &self.kind {
            SaeKind::Relu => {
                sparse::indices_above(pre, 0.0, 0, &mut active.indices);
                active.set_values(|i| pre[i]);
            }
            SaeKind::JumpRelu { threshold } => {
                sparse::indices_above_each(pre, threshold, &mut active.indices);
                active.set_values(|i| pre[i]);
            }
            SaeKind::TopK { k, by_decoder_norm: None } => {
                sparse::top_k(pre, *k, &mut active.indices);
                active.set_values(|i| pre[i]);
            }
            SaeKind::TopK { k, by_decoder_norm: Some(norms) } => {
                scores.clear();
                scores.extend(pre.iter().zip(norms).map(|(p, norm)| p * norm));
                sparse::top_k(scores, *k, &mut active.indices);
                active.set_values(|i| pre[i]);
            }
            SaeKind::AbsTopK { k } => {
                scores.clear();
                scores.extend(pre.iter().map(|p| p.abs()));
                sparse::top_k(scores, *k, &mut active.indices);
                active.values.extend(active.indices.iter().map(|&i| pre[i as usize]));
            }
            SaeKind::GroupMax { k } => {
                let size = pre.len() / k;
                active.indices.extend(pre.chunks_exact(size).enumerate().map(|(group, pre)| {
                    // The first of equal elements; the first NaN, if there is one.
                    let better = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
                    let best = (1..size).fold(0, |best, i| if better(pre[i], pre[best]) { i } else { best });
                    (group * size + best) as u32
                }));
                active.set_values(|i| pre[i]);
            }
            SaeKind::Gated { gate_bias, magnitude_bias, log_scale } => {
                sparse::indices_of_positive_sums(pre, gate_bias, &mut active.indices);
                active.set_values(|i| pre[i] * log_scale[i].exp() + magnitude_bias[i]);
            }
        }
    }
}
