//! Backward pass of fused attention.
//!
//! Needs only queries, keys and values from the forward pass. For each block of queries it
//! recomputes the rows of attention weights over all keys, and next to them their gradients. So
//! memory grows linearly with the length of the sequence. All five products use the shared tile.

use super::fused::scale_and_cap;
use super::{AttentionShape, HeadBiases};
use crate::dispatch;
use crate::elementwise::dot;
use crate::memory::DisjointMut;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::softmax::softmax;
use crate::tile::{self, Left, Out, PANEL, Right};
use std::cell::RefCell;

/// Rows (queries × heads of a group) per block.
const BLOCK_ROWS: usize = 48;
/// Tasks per KV head of a sequence. Each task sums over its own queries, and the sums are added in
/// a fixed order: the result does not depend on the number of threads.
const QUERY_SPLITS: usize = 4;

/// All tokens of a sequence, or its first ones.
#[derive(Clone, Copy, Debug)]
pub struct TokenRun {
    /// Index of the first token in the packed activations.
    pub packed_offset: usize,
    /// Number of tokens.
    pub count: usize,
}

/// Gradients of queries, keys and values. The results are added to them.
pub struct AttentionGradients<'a> {
    /// `[tokens, heads · key_dim]`
    pub q: &'a mut [f32],
    /// `[tokens, kv_heads · key_dim]`
    pub k: &'a mut [f32],
    /// `[tokens, kv_heads · value_dim]`
    pub v: &'a mut [f32],
}

/// Inputs of attention and the gradient of its output, packed by token: `q` is
/// `[tokens, heads, key_dim]`, `k` is `[tokens, kv_heads, key_dim]`, `v` is
/// `[tokens, kv_heads, value_dim]`, `dz` is `[tokens, heads, value_dim]`.
#[derive(Clone, Copy)]
struct AttentionInputs<'a> {
    shape: &'a AttentionShape,
    biases: HeadBiases<'a>,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    dz: &'a [f32],
}

/// Backward pass of [`super::attend`] over whole sequences; `dz` is the gradient of its output.
#[expect(clippy::too_many_arguments, reason = "three inputs, each with its gradient")]
pub fn attend_backward(
    pool: &Pool,
    shape: &AttentionShape,
    biases: HeadBiases,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dz: &[f32],
    runs: &[TokenRun],
    gradients: AttentionGradients,
) {
    let inputs = AttentionInputs { shape, biases, q, k, v, dz };
    let (key, value) = (shape.key_dim.next_multiple_of(PANEL), shape.value_dim.next_multiple_of(PANEL));
    let mut sums = SUMS.take();
    for run in runs {
        let each = run.count * (key + value);
        sums.resize(sums.len().max(shape.kv_heads * QUERY_SPLITS * each), 0.0);
        let (shared, dq) = (DisjointMut::new(&mut sums), DisjointMut::new(gradients.q));
        pool.run(shape.kv_heads * QUERY_SPLITS, &|task| {
            // SAFETY: each task has its own sums, and its own queries of its own heads.
            let sums = unsafe { shared.part(task * each, each) };
            sums.fill(0.0);
            SCRATCH.with_borrow_mut(|scratch| {
                split_backward(inputs, *run, task / QUERY_SPLITS, task % QUERY_SPLITS, dq, sums, scratch)
            });
        });
        for (task, sums) in sums.chunks_exact(each).take(shape.kv_heads * QUERY_SPLITS).enumerate() {
            let (keys, values) = sums.split_at(run.count * key);
            add_head_rows(
                keys,
                key,
                shape.key_dim,
                task / QUERY_SPLITS,
                shape.kv_heads,
                run.packed_offset,
                gradients.k,
            );
            add_head_rows(
                values,
                value,
                shape.value_dim,
                task / QUERY_SPLITS,
                shape.kv_heads,
                run.packed_offset,
                gradients.v,
            );
        }
    }
    SUMS.set(sums);
}

/// Buffers of a task. They are thread-local, because allocating them per task costs more than the
/// computation.
#[derive(Default)]
struct BackwardScratch {
    key_rows: Vec<f32>,
    key_panels: Vec<f32>,
    value_rows: Vec<f32>,
    value_panels: Vec<f32>,
    weights: Vec<f32>,
    weight_gradients: Vec<f32>,
    queries: Vec<f32>,
    upstream: Vec<f32>,
    query_sums: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<BackwardScratch> = RefCell::new(BackwardScratch::default());
    /// Sums of all tasks, on the thread that calls `attend_backward`.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Adds one head's rows (`stride` floats each) to the packed `[tokens, heads, dim]` array.
fn add_head_rows(from: &[f32], stride: usize, dim: usize, head: usize, heads: usize, token: usize, to: &mut [f32]) {
    for (i, line) in from.chunks_exact(stride).enumerate() {
        let to = &mut to[((token + i) * heads + head) * dim..][..dim];
        to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
    }
}

/// Copies one head's vectors from a packed `[tokens, heads, dim]` array to rows of `stride` floats;
/// pads the number of rows to whole panels.
pub(super) fn padded_rows(
    from: &[f32],
    dim: usize,
    stride: usize,
    head: usize,
    heads: usize,
    run: TokenRun,
    out: &mut Vec<f32>,
) {
    out.clear();
    out.resize(run.count.next_multiple_of(PANEL) * stride, 0.0);
    for (i, line) in out.chunks_exact_mut(stride).take(run.count).enumerate() {
        line[..dim].copy_from_slice(&from[((run.packed_offset + i) * heads + head) * dim..][..dim]);
    }
}

/// Packs rows of `stride` floats into panels of 16 positions, `[panels][dim][16]`.
pub(super) fn pack_panels(padded_rows: &[f32], dim: usize, stride: usize, out: &mut Vec<f32>) {
    out.resize(padded_rows.len() / stride * dim, 0.0);
    for (panel, padded_rows) in out.chunks_exact_mut(dim * PANEL).zip(padded_rows.chunks_exact(stride * PANEL)) {
        for (lane, line) in padded_rows.chunks_exact(stride).enumerate() {
            line[..dim].iter().enumerate().for_each(|(step, &x)| panel[step * PANEL + lane] = x);
        }
    }
}

dispatch! { fn split_backward(inputs: AttentionInputs, run: TokenRun, kv_head: usize, split: usize, dq: DisjointMut<f32>, sums: &mut [f32], scratch: &mut BackwardScratch) = split_backward_with }

/// Processes every fourth block of queries, for the query heads of one KV head.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inputs, the split of queries, and buffers")]
fn split_backward_with<S: Simd>(
    s: S,
    inputs: AttentionInputs,
    run: TokenRun,
    kv_head: usize,
    split: usize,
    dq: DisjointMut<f32>,
    sums: &mut [f32],
    scratch: &mut BackwardScratch,
) {
    let AttentionInputs { shape, biases, q, k, v, dz } = inputs;
    let (group, key_dim, value_dim) = (shape.group(), shape.key_dim, shape.value_dim);
    let (key, value) = (key_dim.next_multiple_of(PANEL), value_dim.next_multiple_of(PANEL));
    let BackwardScratch {
        key_rows,
        key_panels,
        value_rows,
        value_panels,
        weights,
        weight_gradients,
        queries,
        upstream,
        query_sums,
    } = scratch;
    padded_rows(k, key_dim, key, kv_head, shape.kv_heads, run, key_rows);
    pack_panels(key_rows, key_dim, key, key_panels);
    padded_rows(v, value_dim, value, kv_head, shape.kv_heads, run, value_rows);
    pack_panels(value_rows, value_dim, value, value_panels);
    let (key_sums, value_sums) = sums.split_at_mut(run.count * key);

    let block = (BLOCK_ROWS / group).max(1);
    let max_rows = block * group;
    // Weights are read by column as well as by row: with a stride of 2ⁿ floats, a column would map
    // to a few cache sets.
    let stride = run.count.next_multiple_of(PANEL) | PANEL;
    weights.resize(max_rows * stride, 0.0);
    weight_gradients.resize(max_rows * stride, 0.0);
    // The buffers may hold data of another shape: clear the padding between `dim` and the stride.
    for (buffer, width) in [(&mut *queries, key), (&mut *upstream, value), (&mut *query_sums, key)] {
        buffer.clear();
        buffer.resize(max_rows * width, 0.0);
    }
    for first in (split * block..run.count).step_by(QUERY_SPLITS * block) {
        let count = block.min(run.count - first);
        let rows = count * group;
        // Row r is query r / group, head r % group of the group.
        let head_index =
            |row: usize| (run.packed_offset + first + row / group) * shape.heads + kv_head * group + row % group;
        for row in 0..rows {
            queries[row * key..][..key_dim].copy_from_slice(&q[head_index(row) * key_dim..][..key_dim]);
            upstream[row * value..][..value_dim].copy_from_slice(&dz[head_index(row) * value_dim..][..value_dim]);
        }
        let start = shape.visible(first).start / PANEL * PANEL;
        let end = shape.visible(first + count - 1).end;
        let width = (end - start).next_multiple_of(PANEL);
        // SAFETY: keys and values are padded to whole panels up to the end of the run, which
        // `start + width` does not exceed; the buffers of queries, upstream gradients, weights and
        // weight gradients were sized for `rows` rows and `width` keys.
        unsafe {
            let panels_from_start = |panels: &[f32], dim: usize| Right {
                start: panels[start * dim..].as_ptr(),
                row_stride: PANEL,
                panel_stride: dim * PANEL,
            };
            let out = |to: &mut [f32]| Out { start: to.as_mut_ptr(), row_stride: stride, panel_stride: PANEL };
            let left = Left { start: queries.as_ptr(), row_stride: key, col_stride: 1 };
            tile::multiply_block(
                s.panel(),
                rows,
                width / PANEL,
                key_dim,
                left,
                panels_from_start(key_panels, key_dim),
                out(weights),
                false,
            );
            let left = Left { start: upstream.as_ptr(), row_stride: value, col_stride: 1 };
            tile::multiply_block(
                s.panel(),
                rows,
                width / PANEL,
                value_dim,
                left,
                panels_from_start(value_panels, value_dim),
                out(weight_gradients),
                false,
            );
        }
        let row_pairs = weights.chunks_exact_mut(stride).zip(weight_gradients.chunks_exact_mut(stride));
        for (row, (weights, weight_gradients)) in row_pairs.take(rows).enumerate() {
            let (weights, weight_gradients) = (&mut weights[..width], &mut weight_gradients[..width]);
            let visible = shape.visible(first + row / group);
            let visible = visible.start.saturating_sub(start)..visible.end - start;
            let head = kv_head * group + row % group;
            row_backward(s, shape, biases, head, start, visible, weights, weight_gradients);
        }
        // SAFETY: as above; the sums cover all keys of the run, and `start..end` are among them.
        unsafe {
            let out = Out { start: query_sums.as_mut_ptr(), row_stride: key, panel_stride: PANEL };
            let left = Left { start: weight_gradients.as_ptr(), row_stride: stride, col_stride: 1 };
            let right = Right { start: key_rows[start * key..].as_ptr(), row_stride: key, panel_stride: PANEL };
            tile::multiply_block(s.panel(), rows, key / PANEL, end - start, left, right, out, false);
            let transposed = |from: &[f32]| Left { start: from.as_ptr(), row_stride: 1, col_stride: stride };
            let out = Out { start: key_sums[start * key..].as_mut_ptr(), row_stride: key, panel_stride: PANEL };
            let right = Right { start: queries.as_ptr(), row_stride: key, panel_stride: PANEL };
            tile::multiply_block(
                s.panel(),
                end - start,
                key / PANEL,
                rows,
                transposed(weight_gradients),
                right,
                out,
                true,
            );
            let out = Out { start: value_sums[start * value..].as_mut_ptr(), row_stride: value, panel_stride: PANEL };
            let right = Right { start: upstream.as_ptr(), row_stride: value, panel_stride: PANEL };
            tile::multiply_block(s.panel(), end - start, value / PANEL, rows, transposed(weights), right, out, true);
        }
        for row in 0..rows {
            // SAFETY: each task has its own queries of its own heads.
            let dq = unsafe { dq.part(head_index(row) * key_dim, key_dim) };
            dq.iter_mut().zip(&query_sums[row * key..]).for_each(|(y, x)| *y += x);
        }
    }
}

/// Handles one query of one head, in place: q·k products become attention weights, and the
/// gradients of these weights become gradients of the products.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "parameters of a score, and its position")]
fn row_backward<S: Simd>(
    s: S,
    shape: &AttentionShape,
    biases: HeadBiases,
    head: usize,
    start: usize,
    visible: std::ops::Range<usize>,
    weights: &mut [f32],
    weight_gradients: &mut [f32],
) {
    scale_and_cap(s, shape, weights);
    // Derivative of the soft cap in terms of the capped score: 1 - (y / cap)².
    let cap_derivatives =
        shape.soft_cap.map(|cap| weights.iter().map(|y| 1.0 - (y / cap) * (y / cap)).collect::<Vec<f32>>());
    if let Some(slopes) = biases.slopes {
        weights.iter_mut().enumerate().for_each(|(i, x)| *x += slopes.bias(head, start + i));
    }
    weights[..visible.start].fill(f32::NEG_INFINITY);
    weights[visible.end..].fill(f32::NEG_INFINITY);
    softmax(weights, biases.sinks.map(|sinks| sinks[head]));
    softmax_backward(weights, weight_gradients);
    weight_gradients.iter_mut().for_each(|x| *x *= shape.scale);
    if let Some(cap_derivatives) = cap_derivatives {
        weight_gradients.iter_mut().zip(cap_derivatives).for_each(|(x, derivative)| *x *= derivative);
    }
}

/// Backward pass of a softmax, in place: `probs` are its outputs, `gradient` is their gradient and
/// becomes the gradient of the scores.
pub fn softmax_backward(probs: &[f32], gradient: &mut [f32]) {
    let mean = dot(probs, gradient);
    gradient.iter_mut().zip(probs).for_each(|(g, p)| *g = p * (*g - mean));
}
