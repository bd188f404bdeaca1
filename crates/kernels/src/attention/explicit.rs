//! Attention taken apart: scores to look at or change, and the mixing of values by given weights.

use super::fused::finish_scores;
use super::{AttentionShape, HeadTerms, Queries};
use crate::dispatch;
use crate::simd::Simd;
use crate::tile::{self, Left, Out, PANEL, Right};

/// Scores of one run of queries, `[heads, count, keys]` with `keys = position + count`: scaled, capped, masked with -inf, before softmax.
pub fn scores(shape: &AttentionShape, terms: HeadTerms, q: &[f32], queries: &Queries) -> Vec<f32> {
    let keys = queries.position + queries.count;
    let mut out = vec![0.0; shape.heads * queries.count * keys];
    for head in 0..shape.heads {
        head_scores(shape, terms, q, queries, head, &mut out[head * queries.count * keys..][..queries.count * keys]);
    }
    out
}

/// `out[token] = weights · values`: `weights` is `[heads, count, keys]`, `out` the packed `[tokens, heads · value_dim]`.
pub fn mix(shape: &AttentionShape, weights: &[f32], queries: &Queries, out: &mut [f32]) {
    let keys = queries.position + queries.count;
    assert_eq!(weights.len(), shape.heads * queries.count * keys, "weights for every head, query and key");
    for head in 0..shape.heads {
        head_mix(shape, &weights[head * queries.count * keys..][..queries.count * keys], queries, head, out);
    }
}

dispatch! { fn head_scores(shape: &AttentionShape, terms: HeadTerms, q: &[f32], queries: &Queries, head: usize, out: &mut [f32]) = head_scores_with }
dispatch! { fn head_mix(shape: &AttentionShape, weights: &[f32], queries: &Queries, head: usize, out: &mut [f32]) = head_mix_with }

#[inline(always)]
fn head_scores_with<S: Simd>(
    s: S,
    shape: &AttentionShape,
    terms: HeadTerms,
    q: &[f32],
    queries: &Queries,
    head: usize,
    out: &mut [f32],
) {
    let keys = queries.position + queries.count;
    let panels = keys.div_ceil(PANEL);
    let mut wide = Vec::new();
    let all = queries.kv.keys(head / shape.group(), 0..keys, &mut wide);
    let mut line = vec![0.0; panels * PANEL];
    for (i, out) in out.chunks_exact_mut(keys).enumerate() {
        let start = ((queries.token + i) * shape.heads + head) * shape.key_dim;
        let left = Left { start: q[start..start + shape.key_dim].as_ptr(), row: 0, col: 1 };
        let right = Right { start: all.as_ptr(), step: PANEL, panel: shape.key_dim * PANEL };
        let sums = Out { start: line.as_mut_ptr(), row: 0, panel: PANEL };
        // SAFETY: the store holds `keys` positions in whole panels, and `line` has room for them.
        unsafe { tile::block(s.panel(), 1, panels, shape.key_dim, left, right, sums, false) };
        out.copy_from_slice(&line[..keys]);
        finish_scores(s, shape, terms, head, 0, out);
        let visible = shape.visible(queries.position + i);
        out[..visible.start].fill(f32::NEG_INFINITY);
        out[visible.end..].fill(f32::NEG_INFINITY);
    }
}

#[inline(always)]
fn head_mix_with<S: Simd>(
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
    let mut line = vec![0.0; stride];
    for (i, weights) in weights.chunks_exact(keys).enumerate() {
        let left = Left { start: weights.as_ptr(), row: 0, col: 1 };
        let right = Right { start: all.as_ptr(), step: stride, panel: PANEL };
        let sums = Out { start: line.as_mut_ptr(), row: 0, panel: PANEL };
        // SAFETY: the store holds `keys` positions, and `line` one value with its padding.
        unsafe { tile::block(s.panel(), 1, stride / PANEL, keys, left, right, sums, false) };
        let start = ((queries.token + i) * shape.heads + head) * shape.value_dim;
        out[start..start + shape.value_dim].copy_from_slice(&line[..shape.value_dim]);
    }
}
