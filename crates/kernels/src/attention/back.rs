//! The gradient of attention.
//!
//! Nothing of the forward pass is needed but queries, keys and values. A block of queries has its rows of weights computed anew, all keys wide, and
//! with them the rows of their gradient: two rows of numbers for each query of the block, so memory grows with the length and not with
//! its square. All five products run through the one tile.

use super::fused::scale_and_cap;
use super::{AttentionShape, HeadTerms};
use crate::dispatch;
use crate::elementwise::dot;
use crate::memory::Shared;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::softmax::softmax;
use crate::tile::{self, Left, Out, PANEL, Right};

/// Rows (queries × heads of a group) handled together.
const ROWS: usize = 48;
/// Tasks for each key head of a row. Each has its own sums over its queries, added up in order afterwards: the same numbers
/// on any number of threads.
const PARTS: usize = 4;

/// All tokens of a row, or its first ones.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Where the first token stands in the packed activations.
    pub token: usize,
    /// How many tokens.
    pub count: usize,
}

/// The gradients of queries, keys and values, packed as they are; all are added to.
pub struct Gradients<'a> {
    /// `[tokens, heads · key_dim]`
    pub q: &'a mut [f32],
    /// `[tokens, kv_heads · key_dim]`
    pub k: &'a mut [f32],
    /// `[tokens, kv_heads · value_dim]`
    pub v: &'a mut [f32],
}

/// Queries, keys, values and the gradient of what attention made of them, packed by token.
#[derive(Clone, Copy)]
struct Reads<'a> {
    shape: &'a AttentionShape,
    terms: HeadTerms<'a>,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    dz: &'a [f32],
}

/// The gradient of [`super::attend`] over whole rows: `dz` is that of its output.
#[expect(clippy::too_many_arguments, reason = "attention reads three things, and each has its gradient")]
pub fn attend_back(
    pool: &Pool,
    shape: &AttentionShape,
    terms: HeadTerms,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    dz: &[f32],
    runs: &[Run],
    gradients: Gradients,
) {
    let reads = Reads { shape, terms, q, k, v, dz };
    let (key, value) = (shape.key_dim.next_multiple_of(PANEL), shape.value_dim.next_multiple_of(PANEL));
    for run in runs {
        let each = run.count * (key + value);
        let mut sums = vec![0.0; shape.kv_heads * PARTS * each];
        let (shared, dq) = (Shared::new(&mut sums), Shared::new(gradients.q));
        pool.run(shape.kv_heads * PARTS, &|task| {
            // SAFETY: each task has its own sums, and its own queries of its own heads.
            let sums = unsafe { shared.part(task * each, each) };
            part(reads, *run, task / PARTS, task % PARTS, dq, sums);
        });
        for (task, sums) in sums.chunks_exact(each).enumerate() {
            let (keys, values) = sums.split_at(run.count * key);
            add_head(keys, key, shape.key_dim, task / PARTS, shape.kv_heads, run.token, gradients.k);
            add_head(values, value, shape.value_dim, task / PARTS, shape.kv_heads, run.token, gradients.v);
        }
    }
}

/// Adds one head's numbers, in lines of `stride`, to all heads' packed ones.
fn add_head(from: &[f32], stride: usize, dim: usize, head: usize, heads: usize, token: usize, to: &mut [f32]) {
    for (i, line) in from.chunks_exact(stride).enumerate() {
        let to = &mut to[((token + i) * heads + head) * dim..][..dim];
        to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
    }
}

/// One head's numbers in lines of `stride`, position after position.
pub(super) fn lines(from: &[f32], dim: usize, stride: usize, head: usize, heads: usize, run: Run) -> Vec<f32> {
    let mut out = vec![0.0; run.count.next_multiple_of(PANEL) * stride];
    for (i, line) in out.chunks_exact_mut(stride).take(run.count).enumerate() {
        line[..dim].copy_from_slice(&from[((run.token + i) * heads + head) * dim..][..dim]);
    }
    out
}

/// Lines of `stride` as panels of sixteen positions, coordinate after coordinate.
pub(super) fn panels(lines: &[f32], dim: usize, stride: usize) -> Vec<f32> {
    let mut out = vec![0.0; lines.len() / stride * dim];
    for (panel, lines) in out.chunks_exact_mut(dim * PANEL).zip(lines.chunks_exact(stride * PANEL)) {
        for (lane, line) in lines.chunks_exact(stride).enumerate() {
            line[..dim].iter().enumerate().for_each(|(step, &x)| panel[step * PANEL + lane] = x);
        }
    }
    out
}

dispatch! { fn part(reads: Reads, run: Run, kv_head: usize, part: usize, dq: Shared<f32>, sums: &mut [f32]) = part_with }

/// Every fourth block of queries, for the query heads that share one key head.
#[inline(always)]
fn part_with<S: Simd>(s: S, reads: Reads, run: Run, kv_head: usize, part: usize, dq: Shared<f32>, sums: &mut [f32]) {
    let Reads { shape, terms, q, k, v, dz } = reads;
    let (group, key_dim, value_dim) = (shape.group(), shape.key_dim, shape.value_dim);
    let (key, value) = (key_dim.next_multiple_of(PANEL), value_dim.next_multiple_of(PANEL));
    let key_lines = lines(k, key_dim, key, kv_head, shape.kv_heads, run);
    let key_panels = panels(&key_lines, key_dim, key);
    let value_panels = panels(&lines(v, value_dim, value, kv_head, shape.kv_heads, run), value_dim, value);
    let (key_sums, value_sums) = sums.split_at_mut(run.count * key);

    let block = (ROWS / group).max(1);
    let most = run.count.next_multiple_of(PANEL);
    let rows_most = block * group;
    let (mut weights, mut slopes) = (vec![0.0; rows_most * most], vec![0.0; rows_most * most]);
    let (mut queries, mut upstream) = (vec![0.0; rows_most * key], vec![0.0; rows_most * value]);
    let mut query_sums = vec![0.0; rows_most * key];
    for first in (part * block..run.count).step_by(PARTS * block) {
        let count = block.min(run.count - first);
        let rows = count * group;
        // Row r is query r / group, head r % group of the group.
        let place = |row: usize| (run.token + first + row / group) * shape.heads + kv_head * group + row % group;
        for row in 0..rows {
            queries[row * key..][..key_dim].copy_from_slice(&q[place(row) * key_dim..][..key_dim]);
            upstream[row * value..][..value_dim].copy_from_slice(&dz[place(row) * value_dim..][..value_dim]);
        }
        let start = shape.visible(first).start / PANEL * PANEL;
        let end = shape.visible(first + count - 1).end;
        let width = (end - start).next_multiple_of(PANEL);
        let (weights, slopes) = (&mut weights[..rows * width], &mut slopes[..rows * width]);
        // SAFETY: keys and values were laid out in whole panels up to the run's end, which `start + width` does not pass; the rows of queries,
        // upstream gradients, weights and slopes were sized for a block of `rows` and `width` keys.
        unsafe {
            let over = |panels: &[f32], dim: usize| Right {
                start: panels[start * dim..].as_ptr(),
                step: PANEL,
                panel: dim * PANEL,
            };
            let out = |to: &mut [f32]| Out { start: to.as_mut_ptr(), row: width, panel: PANEL };
            let left = Left { start: queries.as_ptr(), row: key, col: 1 };
            tile::block(s, rows, width / PANEL, key_dim, left, over(&key_panels, key_dim), out(weights), false);
            let left = Left { start: upstream.as_ptr(), row: value, col: 1 };
            tile::block(s, rows, width / PANEL, value_dim, left, over(&value_panels, value_dim), out(slopes), false);
        }
        for (row, (weights, slopes)) in weights.chunks_exact_mut(width).zip(slopes.chunks_exact_mut(width)).enumerate()
        {
            let visible = shape.visible(first + row / group);
            let visible = visible.start.saturating_sub(start)..visible.end - start;
            let head = kv_head * group + row % group;
            line_back(s, shape, terms, head, start, visible, weights, slopes);
        }
        // SAFETY: as above; the sums hold the run's keys, and those from `start` to `end` are among them.
        unsafe {
            let out = Out { start: query_sums.as_mut_ptr(), row: key, panel: PANEL };
            let left = Left { start: slopes.as_ptr(), row: width, col: 1 };
            let right = Right { start: key_lines[start * key..].as_ptr(), step: key, panel: PANEL };
            tile::block(s, rows, key / PANEL, end - start, left, right, out, false);
            let turned = |from: &[f32]| Left { start: from.as_ptr(), row: 1, col: width };
            let out = Out { start: key_sums[start * key..].as_mut_ptr(), row: key, panel: PANEL };
            let right = Right { start: queries.as_ptr(), step: key, panel: PANEL };
            tile::block(s, end - start, key / PANEL, rows, turned(slopes), right, out, true);
            let out = Out { start: value_sums[start * value..].as_mut_ptr(), row: value, panel: PANEL };
            let right = Right { start: upstream.as_ptr(), step: value, panel: PANEL };
            tile::block(s, end - start, value / PANEL, rows, turned(weights), right, out, true);
        }
        for row in 0..rows {
            // SAFETY: each task has its own queries of its own heads.
            let dq = unsafe { dq.part(place(row) * key_dim, key_dim) };
            dq.iter_mut().zip(&query_sums[row * key..]).for_each(|(y, x)| *y += x);
        }
    }
}

/// One query and head: from products and upstream gradients of its weights to the weights and the gradients of the products.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what a score is made of, and where it stands")]
fn line_back<S: Simd>(
    s: S,
    shape: &AttentionShape,
    terms: HeadTerms,
    head: usize,
    start: usize,
    visible: std::ops::Range<usize>,
    weights: &mut [f32],
    slopes: &mut [f32],
) {
    scale_and_cap(s, shape, weights);
    // The soft cap's slope comes from the capped score: 1 - (y / cap)².
    let capped = shape.soft_cap.map(|cap| weights.iter().map(|y| 1.0 - (y / cap) * (y / cap)).collect::<Vec<f32>>());
    if let Some(slopes) = terms.slopes {
        weights.iter_mut().enumerate().for_each(|(i, x)| *x += slopes.bias(head, start + i));
    }
    weights[..visible.start].fill(f32::NEG_INFINITY);
    weights[visible.end..].fill(f32::NEG_INFINITY);
    softmax(weights, terms.sinks.map(|sinks| sinks[head]));
    softmax_back(weights, slopes);
    slopes.iter_mut().for_each(|x| *x *= shape.scale);
    if let Some(capped) = capped {
        slopes.iter_mut().zip(capped).for_each(|(x, slope)| *x *= slope);
    }
}

/// From the gradient of a softmax's shares to that of its scores, in place.
pub fn softmax_back(shares: &[f32], gradient: &mut [f32]) {
    let mean = dot(shares, gradient);
    gradient.iter_mut().zip(shares).for_each(|(g, share)| *g = share * (*g - mean));
}
