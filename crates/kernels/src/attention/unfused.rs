//! Unfused attention: scores that taps can read or change, and the weighted sum of values.

use super::fused::finish_scores;
use super::{AttentionShape, HeadBiases, Queries};
use crate::dispatch;
use crate::simd::Simd;
use crate::tile::{self, Left, Out, PANEL, Right};

/// Computes the scores of one run of queries before softmax, `[heads, count, keys]` with
/// `keys = position + count`: scaled, capped, masked with -inf.
pub fn scores(shape: &AttentionShape, biases: HeadBiases, q: &[f32], queries: &Queries) -> Vec<f32> {
    let keys = queries.position + queries.count;
    let mut out = vec![0.0; shape.heads * queries.count * keys];
    for head in 0..shape.heads {
        head_scores(shape, biases, q, queries, head, &mut out[head * queries.count * keys..][..queries.count * keys]);
    }
    out
}

/// Computes `out[token] = weights · values`: `weights` is `[heads, count, keys]`, `out` is the
/// packed `[tokens, heads · value_dim]`.
pub fn weighted_values(shape: &AttentionShape, weights: &[f32], queries: &Queries, out: &mut [f32]) {
    let keys = queries.position + queries.count;
    assert_eq!(weights.len(), shape.heads * queries.count * keys, "weights for every head, query and key");
    for head in 0..shape.heads {
        head_weighted_values(
            shape,
            &weights[head * queries.count * keys..][..queries.count * keys],
            queries,
            head,
            out,
        );
    }
}

dispatch! { fn head_scores(shape: &AttentionShape, biases: HeadBiases, q: &[f32], queries: &Queries, head: usize, out: &mut [f32]) = head_scores_with }
dispatch! { fn head_weighted_values(shape: &AttentionShape, weights: &[f32], queries: &Queries, head: usize, out: &mut [f32]) = head_weighted_values_with }

#[inline(always)]
fn head_scores_with<S: Simd>(
    s: S,
    shape: &AttentionShape,
    biases: HeadBiases,
    q: &[f32],
    queries: &Queries,
    head: usize,
    out: &mut [f32],
) {
    let keys = queries.position + queries.count;
    let panels = keys.div_ceil(PANEL);
    let mut wide = Vec::new();
    let all = queries.kv.keys(head / shape.group(), 0..keys, &mut wide);
    let mut padded = vec![0.0; panels * PANEL];
    for (i, out) in out.chunks_exact_mut(keys).enumerate() {
        let start = ((queries.packed_offset + i) * shape.heads + head) * shape.key_dim;
        let left = Left { start: q[start..start + shape.key_dim].as_ptr(), row_stride: 0, col_stride: 1 };
        let right = Right { start: all.as_ptr(), row_stride: PANEL, panel_stride: shape.key_dim * PANEL };
        let sums = Out { start: padded.as_mut_ptr(), row_stride: 0, panel_stride: PANEL };
        // SAFETY: the KV cache holds `keys` positions in whole panels, and `padded` has the same
        // size.
        unsafe { tile::multiply_block(s.panel(), 1, panels, shape.key_dim, left, right, sums, false) };
        out.copy_from_slice(&padded[..keys]);
        finish_scores(s, shape, biases, head, 0, out);
        let visible = shape.visible(queries.position + i);
        out[..visible.start].fill(f32::NEG_INFINITY);
        out[visible.end..].fill(f32::NEG_INFINITY);
    }
}

#[inline(always)]
fn head_weighted_values_with<S: Simd>(
    s: S,
    shape: &AttentionShape,
    weights: &[f32],
    queries: &Queries,
    head: usize,
    out: &mut [f32],
) {
    let keys = queries.position + queries.count;
    let stride = queries.kv.value_stride();
    let mut wide = Vec::new();
    let all = queries.kv.values(head / shape.group(), 0..keys, &mut wide);
    let mut padded = vec![0.0; stride];
    for (i, weights) in weights.chunks_exact(keys).enumerate() {
        let left = Left { start: weights.as_ptr(), row_stride: 0, col_stride: 1 };
        let right = Right { start: all.as_ptr(), row_stride: stride, panel_stride: PANEL };
        let sums = Out { start: padded.as_mut_ptr(), row_stride: 0, panel_stride: PANEL };
        // SAFETY: the KV cache holds `keys` positions, and `padded` one value with its padding.
        unsafe { tile::multiply_block(s.panel(), 1, stride / PANEL, keys, left, right, sums, false) };
        let start = ((queries.packed_offset + i) * shape.heads + head) * shape.value_dim;
        out[start..start + shape.value_dim].copy_from_slice(&padded[..shape.value_dim]);
    }
}
