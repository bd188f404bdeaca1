//! The gradient of attention taken apart, with the matrices between its steps in full.

use super::back::{Run, lines, panels};
use super::fused::scale_and_cap;
use super::{AttentionShape, Queries};
use crate::dispatch;
use crate::memory::Shared;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::tile::{self, Left, Out, PANEL, Right};

/// The gradient of [`super::mix`]: gives that of the weights, `[heads, count, keys]`, and adds that of the values to `dv`.
///
/// `weights` are those that were mixed; `v`, `dz` and `dv` are packed by token, and the row's first token is among them.
pub fn mix_back(
    pool: &Pool,
    shape: &AttentionShape,
    weights: &[f32],
    queries: &Queries,
    v: &[f32],
    dz: &[f32],
    dv: &mut [f32],
) -> Vec<f32> {
    let of = Part::new(shape, queries);
    let mut gradient = vec![0.0; weights.len()];
    let (shared, to_v) = (Shared::new(&mut gradient), Shared::new(dv));
    pool.run(shape.kv_heads, &|kv_head| {
        let values = of.keys_of(v, shape.value_dim, kv_head);
        let mut sums = vec![0.0; values.len()];
        for head in of.heads_of(kv_head) {
            let size = of.count * of.keys;
            let (weights, upstream) = (&weights[head * size..][..size], of.queries_of(dz, shape.value_dim, head));
            // SAFETY: each task has its own heads.
            let gradient = unsafe { shared.part(head * size, size) };
            by_keys(&upstream, &values, shape.value_dim, of, gradient);
            to_keys(weights, &upstream, of, &mut sums);
        }
        // SAFETY: each task has its own key head, and touches nothing else.
        unsafe { of.add_to(to_v, &sums, shape.value_dim, kv_head) };
    });
    gradient
}

/// The gradient of [`super::scores`]: from that of the scores, which is taken to be zero where they are masked, to those of queries and keys,
/// which are added to. All are packed by token.
#[expect(clippy::too_many_arguments, reason = "scores read two things, and each has its gradient")]
pub fn scores_back(
    pool: &Pool,
    shape: &AttentionShape,
    queries: &Queries,
    q: &[f32],
    k: &[f32],
    gradient: &[f32],
    dq: &mut [f32],
    dk: &mut [f32],
) {
    let of = Part::new(shape, queries);
    let (to_q, to_k) = (Shared::new(dq), Shared::new(dk));
    pool.run(shape.kv_heads, &|kv_head| {
        let keys = of.keys_of(k, shape.key_dim, kv_head);
        let mut sums = vec![0.0; keys.len()];
        for head in of.heads_of(kv_head) {
            let size = of.count * of.keys;
            let read = of.queries_of(q, shape.key_dim, head);
            let mut products = gradient[head * size..][..size].to_vec();
            products.iter_mut().for_each(|x| *x *= shape.scale);
            if let Some(cap) = shape.soft_cap {
                let mut capped = vec![0.0; size];
                by_keys(&read, &keys, shape.key_dim, of, &mut capped);
                cap_scores(shape, &mut capped);
                // The slope of a soft cap comes from the capped score: 1 - (y / cap)².
                products.iter_mut().zip(&capped).for_each(|(x, y)| *x *= 1.0 - (y / cap) * (y / cap));
            }
            let mut own = vec![0.0; read.len()];
            to_queries(&products, &keys, of, &mut own);
            to_keys(&products, &read, of, &mut sums);
            for (i, line) in own.chunks_exact(own.len() / of.count).enumerate() {
                // SAFETY: each task has its own heads.
                let to = unsafe { to_q.part(((of.token + i) * shape.heads + head) * shape.key_dim, shape.key_dim) };
                to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
            }
        }
        // SAFETY: each task has its own key head, and touches nothing else.
        unsafe { of.add_to(to_k, &sums, shape.key_dim, kv_head) };
    });
}

/// Some queries of a row and all keys up to the last of them.
#[derive(Clone, Copy)]
struct Part {
    heads: usize,
    kv_heads: usize,
    /// Queries, and where the first of them stands.
    count: usize,
    token: usize,
    /// Keys, and where the first of them stands.
    keys: usize,
    first: usize,
}

impl Part {
    fn new(shape: &AttentionShape, queries: &Queries) -> Part {
        Part {
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            count: queries.count,
            token: queries.token,
            keys: queries.position + queries.count,
            first: queries.token - queries.position,
        }
    }

    fn heads_of(self, kv_head: usize) -> std::ops::Range<usize> {
        let group = self.heads / self.kv_heads;
        kv_head * group..(kv_head + 1) * group
    }

    /// One head's numbers for each query, in whole panels.
    fn queries_of(self, from: &[f32], dim: usize, head: usize) -> Vec<f32> {
        let stride = dim.next_multiple_of(PANEL);
        let mut out = Vec::new();
        lines(from, dim, stride, head, self.heads, Run { token: self.token, count: self.count }, &mut out);
        out.truncate(self.count * stride);
        out
    }

    /// One key head's numbers for each key, in whole panels.
    fn keys_of(self, from: &[f32], dim: usize, head: usize) -> Vec<f32> {
        let (stride, run) = (dim.next_multiple_of(PANEL), Run { token: self.first, count: self.keys });
        let mut out = Vec::new();
        lines(from, dim, stride, head, self.kv_heads, run, &mut out);
        out
    }

    /// Adds one key head's numbers for each key to all heads' packed ones.
    ///
    /// # Safety
    /// No other thread uses this head.
    unsafe fn add_to(self, to: Shared<f32>, from: &[f32], dim: usize, head: usize) {
        for (i, line) in from.chunks_exact(dim.next_multiple_of(PANEL)).take(self.keys).enumerate() {
            // SAFETY: the caller gives this head to nobody else.
            let to = unsafe { to.part(((self.first + i) * self.kv_heads + head) * dim, dim) };
            to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
        }
    }
}

dispatch! { fn cap_scores(shape: &AttentionShape, scores: &mut [f32]) = scale_and_cap_with }
dispatch! { fn by_keys(left: &[f32], keys: &[f32], dim: usize, of: Part, out: &mut [f32]) = by_keys_with }
dispatch! { fn to_keys(matrix: &[f32], right: &[f32], of: Part, out: &mut [f32]) = to_keys_with }
dispatch! { fn to_queries(matrix: &[f32], keys: &[f32], of: Part, out: &mut [f32]) = to_queries_with }

#[inline(always)]
fn scale_and_cap_with<S: Simd>(s: S, shape: &AttentionShape, scores: &mut [f32]) {
    scale_and_cap(s, shape, scores);
}

/// `out = left · keysᵀ`, `[count, keys]`.
#[inline(always)]
fn by_keys_with<S: Simd>(s: S, left: &[f32], keys: &[f32], dim: usize, of: Part, out: &mut [f32]) {
    let (stride, width) = (dim.next_multiple_of(PANEL), of.keys.next_multiple_of(PANEL));
    let mut packed = Vec::new();
    panels(keys, dim, stride, &mut packed);
    assert!(left.len() == of.count * stride && packed.len() == width * dim, "queries by keys");
    let mut wide = vec![0.0; of.count * width];
    let left = Left { start: left.as_ptr(), row: stride, col: 1 };
    let right = Right { start: packed.as_ptr(), step: PANEL, panel: dim * PANEL };
    let to = Out { start: wide.as_mut_ptr(), row: width, panel: PANEL };
    // SAFETY: the lengths have just been checked, and `wide` has whole panels for each query.
    unsafe { tile::block(s.panel(), of.count, width / PANEL, dim, left, right, to, false) };
    out.chunks_exact_mut(of.keys).zip(wide.chunks_exact(width)).for_each(|(y, x)| y.copy_from_slice(&x[..of.keys]));
}

/// `out += matrixᵀ · right`: what each key gets from all queries.
#[inline(always)]
fn to_keys_with<S: Simd>(s: S, matrix: &[f32], right: &[f32], of: Part, out: &mut [f32]) {
    let stride = right.len() / of.count;
    assert!(matrix.len() == of.count * of.keys && out.len() >= of.keys * stride, "queries to keys");
    let left = Left { start: matrix.as_ptr(), row: 1, col: of.keys };
    let right = Right { start: right.as_ptr(), step: stride, panel: PANEL };
    let to = Out { start: out.as_mut_ptr(), row: stride, panel: PANEL };
    // SAFETY: the lengths have just been checked; a stride is whole panels.
    unsafe { tile::block(s.panel(), of.keys, stride / PANEL, of.count, left, right, to, true) };
}

/// `out = matrix · keys`: what each query gets from all keys.
#[inline(always)]
fn to_queries_with<S: Simd>(s: S, matrix: &[f32], keys: &[f32], of: Part, out: &mut [f32]) {
    let stride = out.len() / of.count;
    assert!(matrix.len() == of.count * of.keys && keys.len() >= of.keys * stride, "keys to queries");
    let left = Left { start: matrix.as_ptr(), row: of.keys, col: 1 };
    let right = Right { start: keys.as_ptr(), step: stride, panel: PANEL };
    let to = Out { start: out.as_mut_ptr(), row: stride, panel: PANEL };
    // SAFETY: the lengths have just been checked; a stride is whole panels.
    unsafe { tile::block(s.panel(), of.count, stride / PANEL, of.keys, left, right, to, false) };
}
