//! Fused attention (FlashAttention): an online softmax over tiles of keys.

use super::{AttentionShape, HeadBiases, Queries};
use crate::activation::{SoftCap, exp, map};
use crate::dispatch;
use crate::memory::DisjointMut;
use crate::pool::Pool;
use crate::simd::{LANES, Lanes, Simd};
use crate::tile::{self, Left, Out, PANEL, PanelRow, Right, load_panel_row, store_panel_row, vectors_per_row};
use std::cell::RefCell;
use std::ops::Range;

/// Keys per tile. Tiles start at multiples of this position for every query, so a query's softmax
/// always runs in the same steps.
const TILE: usize = 64;
/// Rows (queries × heads of a group) per block.
const BLOCK_ROWS: usize = 48;

/// Computes `out[token] = softmax(q · keys) · values` for every query head; `q` is
/// `[tokens, heads · key_dim]`, `out` is `[tokens, heads · value_dim]`. `queries(i)` returns run
/// `i` of `runs`.
pub fn attend<'a>(
    pool: &Pool,
    shape: &AttentionShape,
    biases: HeadBiases,
    q: &[f32],
    runs: usize,
    queries: &(dyn Fn(usize) -> Queries<'a> + Sync),
    out: &mut [f32],
) {
    let block = (BLOCK_ROWS / shape.group()).max(1);
    let blocks = |queries: &Queries| queries.count.div_ceil(block);
    let total: usize = (0..runs).map(|run| blocks(&queries(run))).sum();
    let shared = DisjointMut::new(out);
    // A single long sequence with few KV heads has fewer tasks than threads: split the query heads
    // that share a KV head.
    let long = (0..runs).map(queries).any(|run| run.position + run.count > 4 * TILE);
    let head_splits = match total * shape.kv_heads {
        tasks if long && tasks > 0 => pool.threads().div_ceil(tasks).min(shape.group()),
        _ => 1,
    };
    pool.run(total * shape.kv_heads * head_splits, &|task| {
        let (task, split) = (task / head_splits, task % head_splits);
        let (mut index, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let run = (0..runs).map(queries).find(|queries| {
            let here = index < blocks(queries);
            index -= if here { 0 } else { blocks(queries) };
            here
        });
        let Some(run) = run else { return };
        let first = index * block;
        let heads = split * shape.group() / head_splits..(split + 1) * shape.group() / head_splits;
        let block = QueryBlock { run, kv_head, heads, first, count: block.min(run.count - first) };
        SCRATCH.with_borrow_mut(|scratch| attend_block(shape, biases, q, block, shared, scratch));
    });
}

/// Some queries of one run, for query heads that share one KV head.
struct QueryBlock<'a> {
    run: Queries<'a>,
    kv_head: usize,
    /// Range within the query heads of the group.
    heads: Range<usize>,
    first: usize,
    count: usize,
}

#[derive(Default)]
struct AttentionScratch {
    q: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    /// A tile of keys or values, widened from bf16.
    wide: Vec<f32>,
    /// Running maximum and running sum of each row's softmax.
    softmax: Vec<(f32, f32)>,
}

thread_local! {
    static SCRATCH: RefCell<AttentionScratch> = RefCell::new(AttentionScratch::default());
}

dispatch! { fn attend_block(shape: &AttentionShape, biases: HeadBiases, q: &[f32], block: QueryBlock, out: DisjointMut<f32>, scratch: &mut AttentionScratch) = attend_block_with }

#[inline(always)]
fn attend_block_with<S: Simd>(
    s: S,
    shape: &AttentionShape,
    biases: HeadBiases,
    q: &[f32],
    block: QueryBlock,
    out: DisjointMut<f32>,
    scratch: &mut AttentionScratch,
) {
    let (group, kv) = (block.heads.len(), block.run.kv);
    let (rows, stride) = (block.count * group, kv.value_stride());
    let position = block.run.position + block.first;
    let token = block.run.packed_offset + block.first;
    let head = |row: usize| block.kv_head * shape.group() + block.heads.start + row % group;
    // Without soft cap and biases, the scale is applied together with the exponential; otherwise
    // `finish_scores` applies it.
    let defer_scale = shape.soft_cap.is_none() && biases.slopes.is_none() && shape.scale > 0.0;
    let scale = if defer_scale { shape.scale } else { 1.0 };

    // Row r is query r / group, head r % group of the group.
    scratch.q.clear();
    for row in 0..rows {
        let start = ((token + row / group) * shape.heads + head(row)) * shape.key_dim;
        scratch.q.extend_from_slice(&q[start..start + shape.key_dim]);
    }
    scratch.scores.resize(rows * TILE, 0.0);
    scratch.sums.clear();
    scratch.sums.resize(rows * stride, 0.0);
    scratch.softmax.clear();
    scratch.softmax.resize(rows, (f32::NEG_INFINITY, 0.0));

    let seen = shape.visible(position).start..shape.visible(position + block.count - 1).end;
    let mut tile_start = seen.start / TILE * TILE;
    while tile_start < seen.end {
        let keys = (seen.end - tile_start).min(TILE);
        // SAFETY: the KV cache holds the positions up to `seen.end` in whole panels; the scratch
        // buffers were sized above.
        unsafe {
            let right = Right {
                start: kv.keys(block.kv_head, tile_start..tile_start + keys, &mut scratch.wide).as_ptr(),
                row_stride: PANEL,
                panel_stride: shape.key_dim * PANEL,
            };
            let left = Left { start: scratch.q.as_ptr(), row_stride: shape.key_dim, col_stride: 1 };
            let scores = Out { start: scratch.scores.as_mut_ptr(), row_stride: TILE, panel_stride: PANEL };
            tile::multiply_block(s.panel(), rows, keys.div_ceil(PANEL), shape.key_dim, left, right, scores, false);
        }
        for row in 0..rows {
            let visible = shape.visible(position + row / group);
            let visible =
                visible.start.saturating_sub(tile_start).min(TILE)..visible.end.saturating_sub(tile_start).min(TILE);
            // Whole panels of the visible keys; the keys beyond them get weight 0.
            let (scores, beyond) =
                scratch.scores[row * TILE..][..TILE].split_at_mut(visible.end.next_multiple_of(PANEL));
            if !defer_scale {
                finish_scores(s, shape, biases, head(row), tile_start, scores);
            }
            scores[..visible.start.min(visible.end)].fill(f32::NEG_INFINITY);
            scores[visible.end..].fill(f32::NEG_INFINITY);
            beyond.fill(0.0);
            let sums = &mut scratch.sums[row * stride..][..stride];
            update_softmax(s, scale, scores, sums, &mut scratch.softmax[row]);
        }
        // SAFETY: as above; values of positions below `seen.end` exist, and masked ones have weight
        // 0.
        unsafe {
            let values = kv.values(block.kv_head, tile_start..tile_start + keys, &mut scratch.wide);
            let right = Right { start: values.as_ptr(), row_stride: stride, panel_stride: PANEL };
            let left = Left { start: scratch.scores.as_ptr(), row_stride: TILE, col_stride: 1 };
            let sums = Out { start: scratch.sums.as_mut_ptr(), row_stride: stride, panel_stride: PANEL };
            tile::multiply_block(s.panel(), rows, stride / PANEL, keys, left, right, sums, true);
        }
        tile_start += TILE;
    }

    for row in 0..rows {
        let (top, mut total) = scratch.softmax[row];
        if let Some(sinks) = biases.sinks {
            // Weights are relative to e^top. A sink far above `top` only makes them small.
            total += (sinks[head(row)] - top).exp();
        }
        // SAFETY: each block owns its tokens' heads.
        let out =
            unsafe { out.part(((token + row / group) * shape.heads + head(row)) * shape.value_dim, shape.value_dim) };
        let inverse = 1.0 / total;
        out.iter_mut().zip(&scratch.sums[row * stride..]).for_each(|(y, &x)| *y = x * inverse);
    }
}

/// Turns q·k products into scores: scale, soft cap, ALiBi, in this order. `first` is the position
/// of the first key.
#[inline(always)]
pub(super) fn finish_scores<S: Simd>(
    s: S,
    shape: &AttentionShape,
    biases: HeadBiases,
    head: usize,
    first: usize,
    scores: &mut [f32],
) {
    scale_and_cap(s, shape, scores);
    if let Some(slopes) = biases.slopes {
        scores.iter_mut().enumerate().for_each(|(i, x)| *x += slopes.bias(head, first + i));
    }
}

/// Turns q·k products into scores without biases.
#[inline(always)]
pub(super) fn scale_and_cap<S: Simd>(s: S, shape: &AttentionShape, scores: &mut [f32]) {
    scores.iter_mut().for_each(|x| *x *= shape.scale);
    if let Some(cap) = shape.soft_cap {
        map(s, &SoftCap(cap), scores);
    }
}

/// Online softmax step: adds a tile's unscaled scores (whole panels) to a row's softmax. The scores
/// become weights relative to the new maximum, and `sums` is rescaled to it.
#[inline(always)]
fn update_softmax<S: Simd>(s: S, scale: f32, scores: &mut [f32], sums: &mut [f32], running: &mut (f32, f32)) {
    let (old, total) = *running;
    let top = old.max(scale * largest(s, scores));
    // If every key so far is masked, all weights of this tile are 0; NaN stays NaN.
    let here = exponentiate(s, scale, if top == f32::NEG_INFINITY { 0.0 } else { top }, scores);
    let shrink = if top > old { s.to_array(exp(s, s.splat(old - top)))[0] } else { 1.0 };
    if shrink < 1.0 {
        sums.iter_mut().for_each(|x| *x *= shrink);
    }
    *running = (top, total * shrink + here);
}

/// Maximum of whole panels of scores.
#[inline(always)]
fn largest<S: Simd>(s: S, scores: &[f32]) -> f32 {
    let l = s.panel();
    let mut top = [l.splat(f32::NEG_INFINITY); 2];
    for panel in scores.chunks_exact(PANEL) {
        // SAFETY: the chunk holds sixteen floats.
        let x = unsafe { load_panel_row(l, panel.as_ptr()) };
        (0..vectors_per_row::<S::Panel>()).for_each(|v| top[v] = l.max(top[v], x[v]));
    }
    let [low, high] = split_panel_row(s, top);
    s.largest(s.max(low, high))
}

/// Replaces whole panels of scores by `e^(scale · score − top)` and returns their sum.
#[inline(always)]
fn exponentiate<S: Simd>(s: S, scale: f32, top: f32, scores: &mut [f32]) -> f32 {
    let l = s.panel();
    let (scale, top) = (l.splat(scale), l.splat(top));
    let mut total = [l.splat(0.0); 2];
    for panel in scores.chunks_exact_mut(PANEL) {
        // SAFETY: the chunk holds sixteen floats.
        unsafe {
            let mut x = load_panel_row(l, panel.as_ptr());
            for v in 0..vectors_per_row::<S::Panel>() {
                x[v] = exp(l, l.sub(l.mul(x[v], scale), top));
                total[v] = l.add(total[v], x[v]);
            }
            store_panel_row(l, panel.as_mut_ptr(), x);
        }
    }
    let [low, high] = split_panel_row(s, total);
    s.sum(s.add(low, high))
}

/// Splits a panel row into two vectors of eight columns.
#[inline(always)]
fn split_panel_row<S: Simd>(s: S, step: PanelRow<S::Panel>) -> [S::V; 2] {
    let mut columns = [0.0; PANEL];
    // SAFETY: the array holds sixteen floats.
    unsafe {
        store_panel_row(s.panel(), columns.as_mut_ptr(), step);
        [s.load(columns.as_ptr()), s.load(columns.as_ptr().add(LANES))]
    }
}
