//! Fused attention: a running softmax over tiles of keys.

use super::{AttentionShape, HeadTerms, Queries};
use crate::activation::{SoftCap, exp, map};
use crate::dispatch;
use crate::memory::Shared;
use crate::pool::Pool;
use crate::simd::{LANES, Lanes, Simd};
use crate::tile::{self, Left, Out, PANEL, Right, Step, load_step, store_step, vectors};
use std::cell::RefCell;
use std::ops::Range;

/// Keys in a tile. Tiles start at multiples of this position for every query, so a query's softmax always runs in the same steps.
const TILE: usize = 64;
/// Rows (queries × heads of a group) handled together.
const ROWS: usize = 48;

/// `out[token] = softmax(q · keys) · values` for every query head; `q` is `[tokens, heads · key_dim]`, `out` `[tokens, heads · value_dim]`.
/// `queries` gives each of the `runs` runs of queries.
pub fn attend<'a>(
    pool: &Pool,
    shape: &AttentionShape,
    terms: HeadTerms,
    q: &[f32],
    runs: usize,
    queries: &(dyn Fn(usize) -> Queries<'a> + Sync),
    out: &mut [f32],
) {
    let block = (ROWS / shape.group()).max(1);
    let blocks = |queries: &Queries| queries.count.div_ceil(block);
    let total: usize = (0..runs).map(|run| blocks(&queries(run))).sum();
    let shared = Shared::new(out);
    // One row of few key heads over a long text: the query heads that share keys part, so that every thread has some.
    let long = (0..runs).map(queries).any(|run| run.position + run.count > 4 * TILE);
    let shares = match total * shape.kv_heads {
        tasks if long && tasks > 0 => pool.threads().div_ceil(tasks).min(shape.group()),
        _ => 1,
    };
    pool.run(total * shape.kv_heads * shares, &|task| {
        let (task, share) = (task / shares, task % shares);
        let (mut index, kv_head) = (task / shape.kv_heads, task % shape.kv_heads);
        let run = (0..runs).map(queries).find(|queries| {
            let here = index < blocks(queries);
            index -= if here { 0 } else { blocks(queries) };
            here
        });
        let Some(run) = run else { return };
        let first = index * block;
        let heads = share * shape.group() / shares..(share + 1) * shape.group() / shares;
        let part = Part { run, kv_head, heads, first, count: block.min(run.count - first) };
        WORKSPACE.with_borrow_mut(|workspace| attend_part(shape, terms, q, part, shared, workspace));
    });
}

/// Some queries of one run, for query heads that share one key head.
struct Part<'a> {
    run: Queries<'a>,
    kv_head: usize,
    /// Which of the heads that share it.
    heads: Range<usize>,
    first: usize,
    count: usize,
}

#[derive(Default)]
struct Workspace {
    q: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
    /// A tile of keys or values that are kept in a narrower format.
    wide: Vec<f32>,
    /// The running maximum and the running sum of a row's softmax.
    softmax: Vec<(f32, f32)>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::default());
}

dispatch! { fn attend_part(shape: &AttentionShape, terms: HeadTerms, q: &[f32], part: Part, out: Shared<f32>, workspace: &mut Workspace) = attend_part_with }

#[inline(always)]
fn attend_part_with<S: Simd>(
    s: S,
    shape: &AttentionShape,
    terms: HeadTerms,
    q: &[f32],
    part: Part,
    out: Shared<f32>,
    workspace: &mut Workspace,
) {
    let (group, kv) = (part.heads.len(), part.run.kv);
    let (rows, stride) = (part.count * group, kv.value_stride());
    let position = part.run.position + part.first;
    let token = part.run.token + part.first;
    let head = |row: usize| part.kv_head * shape.group() + part.heads.start + row % group;
    // Plain products are scaled where they become weights; others are finished before.
    let plain = shape.soft_cap.is_none() && terms.slopes.is_none() && shape.scale > 0.0;
    let scale = if plain { shape.scale } else { 1.0 };

    // Row r is query r / group, head r % group of the group.
    workspace.q.clear();
    for row in 0..rows {
        let start = ((token + row / group) * shape.heads + head(row)) * shape.key_dim;
        workspace.q.extend_from_slice(&q[start..start + shape.key_dim]);
    }
    workspace.scores.resize(rows * TILE, 0.0);
    workspace.sums.clear();
    workspace.sums.resize(rows * stride, 0.0);
    workspace.softmax.clear();
    workspace.softmax.resize(rows, (f32::NEG_INFINITY, 0.0));

    let seen = shape.visible(position).start..shape.visible(position + part.count - 1).end;
    let mut tile_start = seen.start / TILE * TILE;
    while tile_start < seen.end {
        let keys = (seen.end - tile_start).min(TILE);
        // SAFETY: the store holds the positions up to `seen.end` in whole panels; the workspace was sized above.
        unsafe {
            let right = Right {
                start: kv.keys(part.kv_head, tile_start..tile_start + keys, &mut workspace.wide).as_ptr(),
                step: PANEL,
                panel: shape.key_dim * PANEL,
            };
            let left = Left { start: workspace.q.as_ptr(), row: shape.key_dim, col: 1 };
            let scores = Out { start: workspace.scores.as_mut_ptr(), row: TILE, panel: PANEL };
            tile::block(s.panel(), rows, keys.div_ceil(PANEL), shape.key_dim, left, right, scores, false);
        }
        for row in 0..rows {
            let visible = shape.visible(position + row / group);
            let visible =
                visible.start.saturating_sub(tile_start).min(TILE)..visible.end.saturating_sub(tile_start).min(TILE);
            // Whole panels of what it sees; keys beyond them have no weight.
            let (scores, beyond) =
                workspace.scores[row * TILE..][..TILE].split_at_mut(visible.end.next_multiple_of(PANEL));
            if !plain {
                finish_scores(s, shape, terms, head(row), tile_start, scores);
            }
            scores[..visible.start.min(visible.end)].fill(f32::NEG_INFINITY);
            scores[visible.end..].fill(f32::NEG_INFINITY);
            beyond.fill(0.0);
            let sums = &mut workspace.sums[row * stride..][..stride];
            advance(s, scale, scores, sums, &mut workspace.softmax[row]);
        }
        // SAFETY: as above; values of positions below `seen.end` exist, and masked ones are weighted by zero.
        unsafe {
            let values = kv.values(part.kv_head, tile_start..tile_start + keys, &mut workspace.wide);
            let right = Right { start: values.as_ptr(), step: stride, panel: PANEL };
            let left = Left { start: workspace.scores.as_ptr(), row: TILE, col: 1 };
            let sums = Out { start: workspace.sums.as_mut_ptr(), row: stride, panel: PANEL };
            tile::block(s.panel(), rows, stride / PANEL, keys, left, right, sums, true);
        }
        tile_start += TILE;
    }

    for row in 0..rows {
        let (top, mut total) = workspace.softmax[row];
        if let Some(sinks) = terms.sinks {
            // Shares are relative to e^top; a sink far above it only makes them small.
            total += (sinks[head(row)] - top).exp();
        }
        // SAFETY: each part owns its tokens' heads.
        let out =
            unsafe { out.part(((token + row / group) * shape.heads + head(row)) * shape.value_dim, shape.value_dim) };
        let share = 1.0 / total;
        out.iter_mut().zip(&workspace.sums[row * stride..]).for_each(|(y, &x)| *y = x * share);
    }
}

/// From products to scores: scale, soft cap, ALiBi, in this order. `first` is the position of the first key.
#[inline(always)]
pub(super) fn finish_scores<S: Simd>(
    s: S,
    shape: &AttentionShape,
    terms: HeadTerms,
    head: usize,
    first: usize,
    scores: &mut [f32],
) {
    scale_and_cap(s, shape, scores);
    if let Some(slopes) = terms.slopes {
        scores.iter_mut().enumerate().for_each(|(i, x)| *x += slopes.bias(head, first + i));
    }
}

/// From products to scores before any bias.
#[inline(always)]
pub(super) fn scale_and_cap<S: Simd>(s: S, shape: &AttentionShape, scores: &mut [f32]) {
    scores.iter_mut().for_each(|x| *x *= shape.scale);
    if let Some(cap) = shape.soft_cap {
        map(s, &SoftCap(cap), scores);
    }
}

/// Takes a tile's scores, whole panels that are still to be scaled, into a row's running softmax: they become weights relative to its new maximum.
#[inline(always)]
fn advance<S: Simd>(s: S, scale: f32, scores: &mut [f32], sums: &mut [f32], running: &mut (f32, f32)) {
    let (old, total) = *running;
    let top = old.max(scale * largest(s, scores));
    // Nothing seen so far: no weight in this tile, but what is no number stays none.
    let here = weigh(s, scale, if top == f32::NEG_INFINITY { 0.0 } else { top }, scores);
    let shrink = if top > old { s.to_array(exp(s, s.splat(old - top)))[0] } else { 1.0 };
    if shrink < 1.0 {
        sums.iter_mut().for_each(|x| *x *= shrink);
    }
    *running = (top, total * shrink + here);
}

/// The largest of whole panels of scores.
#[inline(always)]
fn largest<S: Simd>(s: S, scores: &[f32]) -> f32 {
    let l = s.panel();
    let mut top = [l.splat(f32::NEG_INFINITY); 2];
    for panel in scores.chunks_exact(PANEL) {
        // SAFETY: the chunk holds sixteen floats.
        let x = unsafe { load_step(l, panel.as_ptr()) };
        (0..vectors::<S::Panel>()).for_each(|v| top[v] = l.max(top[v], x[v]));
    }
    let [low, high] = halves(s, top);
    s.largest(s.max(low, high))
}

/// Turns whole panels of scores into weights, `e^(scale · score − top)`, and returns their sum.
#[inline(always)]
fn weigh<S: Simd>(s: S, scale: f32, top: f32, scores: &mut [f32]) -> f32 {
    let l = s.panel();
    let (scale, top) = (l.splat(scale), l.splat(top));
    let mut total = [l.splat(0.0); 2];
    for panel in scores.chunks_exact_mut(PANEL) {
        // SAFETY: the chunk holds sixteen floats.
        unsafe {
            let mut x = load_step(l, panel.as_ptr());
            for v in 0..vectors::<S::Panel>() {
                x[v] = exp(l, l.sub(l.mul(x[v], scale), top));
                total[v] = l.add(total[v], x[v]);
            }
            store_step(l, panel.as_mut_ptr(), x);
        }
    }
    let [low, high] = halves(s, total);
    s.sum(s.add(low, high))
}

/// The sixteen columns of a step as two vectors of eight.
#[inline(always)]
fn halves<S: Simd>(s: S, step: Step<S::Panel>) -> [S::V; 2] {
    let mut columns = [0.0; PANEL];
    // SAFETY: the array holds sixteen floats.
    unsafe {
        store_step(s.panel(), columns.as_mut_ptr(), step);
        [s.load(columns.as_ptr()), s.load(columns.as_ptr().add(LANES))]
    }
}
