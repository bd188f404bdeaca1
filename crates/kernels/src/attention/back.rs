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
use std::cell::RefCell;

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
    let mut sums = SUMS.take();
    for run in runs {
        let each = run.count * (key + value);
        sums.resize(sums.len().max(shape.kv_heads * PARTS * each), 0.0);
        let (shared, dq) = (Shared::new(&mut sums), Shared::new(gradients.q));
        pool.run(shape.kv_heads * PARTS, &|task| {
            // SAFETY: each task has its own sums, and its own queries of its own heads.
            let sums = unsafe { shared.part(task * each, each) };
            sums.fill(0.0);
            WORKSPACE.with_borrow_mut(|own| part(reads, *run, task / PARTS, task % PARTS, dq, sums, own));
        });
        for (task, sums) in sums.chunks_exact(each).take(shape.kv_heads * PARTS).enumerate() {
            let (keys, values) = sums.split_at(run.count * key);
            add_head(keys, key, shape.key_dim, task / PARTS, shape.kv_heads, run.token, gradients.k);
            add_head(values, value, shape.value_dim, task / PARTS, shape.kv_heads, run.token, gradients.v);
        }
    }
    SUMS.set(sums);
}

/// What a task works on. It stays with its thread: fresh memory costs more than what is computed in it.
#[derive(Default)]
struct Workspace {
    key_lines: Vec<f32>,
    key_panels: Vec<f32>,
    value_lines: Vec<f32>,
    value_panels: Vec<f32>,
    weights: Vec<f32>,
    slopes: Vec<f32>,
    queries: Vec<f32>,
    upstream: Vec<f32>,
    query_sums: Vec<f32>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
    /// The sums of all tasks, on the thread that hands them out.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Adds one head's numbers, in lines of `stride`, to all heads' packed ones.
fn add_head(from: &[f32], stride: usize, dim: usize, head: usize, heads: usize, token: usize, to: &mut [f32]) {
    for (i, line) in from.chunks_exact(stride).enumerate() {
        let to = &mut to[((token + i) * heads + head) * dim..][..dim];
        to.iter_mut().zip(line).for_each(|(y, x)| *y += x);
    }
}

/// One head's numbers in lines of `stride`, position after position, in whole panels of them.
pub(super) fn lines(from: &[f32], dim: usize, stride: usize, head: usize, heads: usize, run: Run, out: &mut Vec<f32>) {
    out.clear();
    out.resize(run.count.next_multiple_of(PANEL) * stride, 0.0);
    for (i, line) in out.chunks_exact_mut(stride).take(run.count).enumerate() {
        line[..dim].copy_from_slice(&from[((run.token + i) * heads + head) * dim..][..dim]);
    }
}

/// Lines of `stride` as panels of sixteen positions, coordinate after coordinate.
pub(super) fn panels(lines: &[f32], dim: usize, stride: usize, out: &mut Vec<f32>) {
    out.resize(lines.len() / stride * dim, 0.0);
    for (panel, lines) in out.chunks_exact_mut(dim * PANEL).zip(lines.chunks_exact(stride * PANEL)) {
        for (lane, line) in lines.chunks_exact(stride).enumerate() {
            line[..dim].iter().enumerate().for_each(|(step, &x)| panel[step * PANEL + lane] = x);
        }
    }
}

dispatch! { fn part(reads: Reads, run: Run, kv_head: usize, part: usize, dq: Shared<f32>, sums: &mut [f32], own: &mut Workspace) = part_with }

/// Every fourth block of queries, for the query heads that share one key head.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what is read, which part of it, and where its sums go")]
fn part_with<S: Simd>(
    s: S,
    reads: Reads,
    run: Run,
    kv_head: usize,
    part: usize,
    dq: Shared<f32>,
    sums: &mut [f32],
    own: &mut Workspace,
) {
    let Reads { shape, terms, q, k, v, dz } = reads;
    let (group, key_dim, value_dim) = (shape.group(), shape.key_dim, shape.value_dim);
    let (key, value) = (key_dim.next_multiple_of(PANEL), value_dim.next_multiple_of(PANEL));
    let Workspace { key_lines, key_panels, value_lines, value_panels, weights, slopes, queries, upstream, query_sums } =
        own;
    lines(k, key_dim, key, kv_head, shape.kv_heads, run, key_lines);
    panels(key_lines, key_dim, key, key_panels);
    lines(v, value_dim, value, kv_head, shape.kv_heads, run, value_lines);
    panels(value_lines, value_dim, value, value_panels);
    let (key_sums, value_sums) = sums.split_at_mut(run.count * key);

    let block = (ROWS / group).max(1);
    let rows_most = block * group;
    // Rows of weights are read down as well as along: a row of 2ⁿ numbers would put all of a column into a few lines of the cache.
    let stride = run.count.next_multiple_of(PANEL) | PANEL;
    weights.resize(rows_most * stride, 0.0);
    slopes.resize(rows_most * stride, 0.0);
    // Queries of other shapes may have been here: what lies between a head's numbers and the next panel is zero.
    for (lines, width) in [(&mut *queries, key), (&mut *upstream, value), (&mut *query_sums, key)] {
        lines.clear();
        lines.resize(rows_most * width, 0.0);
    }
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
        // SAFETY: keys and values were laid out in whole panels up to the run's end, which `start + width` does not pass; the rows of queries,
        // upstream gradients, weights and slopes were sized for a block of `rows` and `width` keys.
        unsafe {
            let over = |panels: &[f32], dim: usize| Right {
                start: panels[start * dim..].as_ptr(),
                step: PANEL,
                panel: dim * PANEL,
            };
            let out = |to: &mut [f32]| Out { start: to.as_mut_ptr(), row: stride, panel: PANEL };
            let left = Left { start: queries.as_ptr(), row: key, col: 1 };
            tile::block(s.panel(), rows, width / PANEL, key_dim, left, over(key_panels, key_dim), out(weights), false);
            let left = Left { start: upstream.as_ptr(), row: value, col: 1 };
            tile::block(
                s.panel(),
                rows,
                width / PANEL,
                value_dim,
                left,
                over(value_panels, value_dim),
                out(slopes),
                false,
            );
        }
        let of_rows = weights.chunks_exact_mut(stride).zip(slopes.chunks_exact_mut(stride));
        for (row, (weights, slopes)) in of_rows.take(rows).enumerate() {
            let (weights, slopes) = (&mut weights[..width], &mut slopes[..width]);
            let visible = shape.visible(first + row / group);
            let visible = visible.start.saturating_sub(start)..visible.end - start;
            let head = kv_head * group + row % group;
            line_back(s, shape, terms, head, start, visible, weights, slopes);
        }
        // SAFETY: as above; the sums hold the run's keys, and those from `start` to `end` are among them.
        unsafe {
            let out = Out { start: query_sums.as_mut_ptr(), row: key, panel: PANEL };
            let left = Left { start: slopes.as_ptr(), row: stride, col: 1 };
            let right = Right { start: key_lines[start * key..].as_ptr(), step: key, panel: PANEL };
            tile::block(s.panel(), rows, key / PANEL, end - start, left, right, out, false);
            let turned = |from: &[f32]| Left { start: from.as_ptr(), row: 1, col: stride };
            let out = Out { start: key_sums[start * key..].as_mut_ptr(), row: key, panel: PANEL };
            let right = Right { start: queries.as_ptr(), step: key, panel: PANEL };
            tile::block(s.panel(), end - start, key / PANEL, rows, turned(slopes), right, out, true);
            let out = Out { start: value_sums[start * value..].as_mut_ptr(), row: value, panel: PANEL };
            let right = Right { start: upstream.as_ptr(), step: value, panel: PANEL };
            tile::block(s.panel(), end - start, value / PANEL, rows, turned(weights), right, out, true);
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
