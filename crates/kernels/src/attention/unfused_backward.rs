//! Backward pass of unfused attention, with full score and weight matrices.

use super::backward::{TokenRun, pack_panels, padded_rows};
use super::fused::scale_and_cap;
use super::{AttentionShape, Queries};
use crate::dispatch;
use crate::memory::DisjointMut;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::tile::{self, Left, Out, PANEL, Right};

/// Backward pass of [`super::weighted_values`]: returns the gradient of the weights,
/// `[heads, count, keys]`, and adds the gradient of the values to `dv`.
///
/// `weights` are the inputs of the forward pass. `v`, `dz` and `dv` are packed by token and include
/// the sequence's first token.
pub fn weighted_values_backward(
    pool: &Pool,
    shape: &AttentionShape,
    weights: &[f32],
    queries: &Queries,
    v: &[f32],
    dz: &[f32],
    dv: &mut [f32],
) -> Vec<f32> {
    let span = AttentionSpan::new(shape, queries);
    let mut gradient = vec![0.0; weights.len()];
    let (shared, to_v) = (DisjointMut::new(&mut gradient), DisjointMut::new(dv));
    pool.run(shape.kv_heads, &|kv_head| {
        let values = span.key_rows(v, shape.value_dim, kv_head);
        let mut sums = vec![0.0; values.len()];
        for head in span.query_heads(kv_head) {
            let size = span.count * span.keys;
            let (weights, upstream) = (&weights[head * size..][..size], span.query_rows(dz, shape.value_dim, head));
            // SAFETY: each task has its own heads.
            let gradient = unsafe { shared.part(head * size, size) };
            queries_times_keys(&upstream, &values, shape.value_dim, span, gradient);
            accumulate_to_keys(weights, &upstream, span, &mut sums);
        }
        // SAFETY: each task has its own KV head and writes nothing else.
        unsafe { span.add_key_rows(to_v, &sums, shape.value_dim, kv_head) };
    });
    gradient
}

/// Backward pass of [`super::scores`]: adds the gradients of queries and keys to `dq` and `dk`.
/// `gradient` is that of the scores and must be zero where they are masked. All but `gradient` are
/// packed by token.
#[expect(clippy::too_many_arguments, reason = "two inputs, each with its gradient")]
pub fn scores_backward(
    pool: &Pool,
    shape: &AttentionShape,
    queries: &Queries,
    q: &[f32],
    k: &[f32],
    gradient: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
) {
    let span = AttentionSpan::new(shape, queries);
    let (to_q, to_k) = (DisjointMut::new(dq), DisjointMut::new(dk));
    pool.run(shape.kv_heads, &|kv_head| {
        let keys = span.key_rows(k, shape.key_dim, kv_head);
        let mut sums = vec![0.0; keys.len()];
        for head in span.query_heads(kv_head) {
            let size = span.count * span.keys;
            let read = span.query_rows(q, shape.key_dim, head);
            let mut products = gradient[head * size..][..size].to_vec();
            products.iter_mut().for_each(|x| *x *= shape.scale);
            if let Some(cap) = shape.soft_cap {
                let mut capped = vec![0.0; size];
                queries_times_keys(&read, &keys, shape.key_dim, span, &mut capped);
                cap_scores(shape, &mut capped);
                // Derivative of the soft cap in terms of the capped score: 1 - (y / cap)².
                products.iter_mut().zip(&capped).for_each(|(x, y)| *x *= 1.0 - (y / cap) * (y / cap));
            }
            let mut query_gradient = vec![0.0; read.len()];
            matrix_times_keys(&products, &keys, span, &mut query_gradient);
            accumulate_to_keys(&products, &read, span, &mut sums);
            for (i, line) in query_gradient.chunks_exact(query_gradient.len() / span.count).enumerate() {
                // SAFETY: each task has its own heads.
                let to = unsafe {
                    to_q.part(((span.packed_offset + i) * shape.heads + head) * shape.key_dim, shape.key_dim)
                };
                to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
            }
        }
        // SAFETY: each task has its own KV head and writes nothing else.
        unsafe { span.add_key_rows(to_k, &sums, shape.key_dim, kv_head) };
    });
}

/// Some queries of a sequence and all keys up to the last of them.
#[derive(Clone, Copy)]
struct AttentionSpan {
    heads: usize,
    kv_heads: usize,
    /// Number of queries, and index of the first in the packed activations.
    count: usize,
    packed_offset: usize,
    /// Number of keys, and index of the first in the packed activations.
    keys: usize,
    first_key: usize,
}

impl AttentionSpan {
    fn new(shape: &AttentionShape, queries: &Queries) -> AttentionSpan {
        AttentionSpan {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            count: queries.count,
            packed_offset: queries.packed_offset,
            keys: queries.position + queries.count,
            first_key: queries.packed_offset - queries.position,
        }
    }

    fn query_heads(self, kv_head: usize) -> std::ops::Range<usize> {
        let group = self.heads / self.kv_heads;
        kv_head * group..(kv_head + 1) * group
    }

    /// Copies one head's query vectors, padded to whole panels: `[count, stride]`.
    fn query_rows(self, from: &[f32], dim: usize, head: usize) -> Vec<f32> {
        let stride = dim.next_multiple_of(PANEL);
        let mut out = Vec::new();
        padded_rows(
            from,
            dim,
            stride,
            head,
            self.heads,
            TokenRun { packed_offset: self.packed_offset, count: self.count },
            &mut out,
        );
        out.truncate(self.count * stride);
        out
    }

    /// Copies one KV head's vectors, padded to whole panels: `[keys, stride]`.
    fn key_rows(self, from: &[f32], dim: usize, head: usize) -> Vec<f32> {
        let (stride, run) = (dim.next_multiple_of(PANEL), TokenRun { packed_offset: self.first_key, count: self.keys });
        let mut out = Vec::new();
        padded_rows(from, dim, stride, head, self.kv_heads, run, &mut out);
        out
    }

    /// Adds one KV head's rows to the packed `[tokens, kv_heads, dim]` array.
    ///
    /// # Safety
    /// No other thread may use this head.
    unsafe fn add_key_rows(self, to: DisjointMut<f32>, from: &[f32], dim: usize, head: usize) {
        for (i, line) in from.chunks_exact(dim.next_multiple_of(PANEL)).take(self.keys).enumerate() {
            // SAFETY: the caller guarantees that no other thread uses this head.
            let to = unsafe { to.part(((self.first_key + i) * self.kv_heads + head) * dim, dim) };
            to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
        }
    }
}

dispatch! { fn cap_scores(shape: &AttentionShape, scores: &mut [f32]) = scale_and_cap_with }
dispatch! { fn queries_times_keys(left: &[f32], keys: &[f32], dim: usize, span: AttentionSpan, out: &mut [f32]) = queries_times_keys_with }
dispatch! { fn accumulate_to_keys(matrix: &[f32], right: &[f32], span: AttentionSpan, out: &mut [f32]) = accumulate_to_keys_with }
dispatch! { fn matrix_times_keys(matrix: &[f32], keys: &[f32], span: AttentionSpan, out: &mut [f32]) = matrix_times_keys_with }

#[inline(always)]
fn scale_and_cap_with<S: Simd>(s: S, shape: &AttentionShape, scores: &mut [f32]) {
    scale_and_cap(s, shape, scores);
}

/// Computes `out = left · keysᵀ`, `[count, keys]`.
#[inline(always)]
fn queries_times_keys_with<S: Simd>(
    s: S,
    left: &[f32],
    keys: &[f32],
    dim: usize,
    span: AttentionSpan,
    out: &mut [f32],
) {
    let (stride, width) = (dim.next_multiple_of(PANEL), span.keys.next_multiple_of(PANEL));
    let mut packed = Vec::new();
    pack_panels(keys, dim, stride, &mut packed);
    assert!(left.len() == span.count * stride && packed.len() == width * dim, "lengths of queries and keys");
    let mut wide = vec![0.0; span.count * width];
    let left = Left { start: left.as_ptr(), row_stride: stride, col_stride: 1 };
    let right = Right { start: packed.as_ptr(), row_stride: PANEL, panel_stride: dim * PANEL };
    let to = Out { start: wide.as_mut_ptr(), row_stride: width, panel_stride: PANEL };
    // SAFETY: the lengths were checked above, and `wide` has whole panels for each query.
    unsafe { tile::multiply_block(s.panel(), span.count, width / PANEL, dim, left, right, to, false) };
    out.chunks_exact_mut(span.keys).zip(wide.chunks_exact(width)).for_each(|(y, x)| y.copy_from_slice(&x[..span.keys]));
}

/// Computes `out += matrixᵀ · right`: for each key, the sum over all queries.
#[inline(always)]
fn accumulate_to_keys_with<S: Simd>(s: S, matrix: &[f32], right: &[f32], span: AttentionSpan, out: &mut [f32]) {
    let stride = right.len() / span.count;
    assert!(matrix.len() == span.count * span.keys && out.len() >= span.keys * stride, "lengths of matrix and keys");
    let left = Left { start: matrix.as_ptr(), row_stride: 1, col_stride: span.keys };
    let right = Right { start: right.as_ptr(), row_stride: stride, panel_stride: PANEL };
    let to = Out { start: out.as_mut_ptr(), row_stride: stride, panel_stride: PANEL };
    // SAFETY: the lengths were checked above; a stride is a whole number of panels.
    unsafe { tile::multiply_block(s.panel(), span.keys, stride / PANEL, span.count, left, right, to, true) };
}

/// Computes `out = matrix · keys`: for each query, the sum over all keys.
#[inline(always)]
fn matrix_times_keys_with<S: Simd>(s: S, matrix: &[f32], keys: &[f32], span: AttentionSpan, out: &mut [f32]) {
    let stride = out.len() / span.count;
    assert!(matrix.len() == span.count * span.keys && keys.len() >= span.keys * stride, "lengths of matrix and keys");
    let left = Left { start: matrix.as_ptr(), row_stride: span.keys, col_stride: 1 };
    let right = Right { start: keys.as_ptr(), row_stride: stride, panel_stride: PANEL };
    let to = Out { start: out.as_mut_ptr(), row_stride: stride, panel_stride: PANEL };
    // SAFETY: the lengths were checked above; a stride is a whole number of panels.
    unsafe { tile::multiply_block(s.panel(), span.count, stride / PANEL, span.keys, left, right, to, false) };
}
