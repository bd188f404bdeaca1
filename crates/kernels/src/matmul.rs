//! `y = x Wᵀ + b`, for one row or thousands, with the same bits for a row either way.
//!
//! Few rows: threads take groups of panels, and each weight is read from memory once. Many rows: threads take blocks
//! of rows × panels; a block's inputs are repacked so that a tile reads them in order, and chunks of weights are
//! widened once for all its rows.

use crate::dispatch;
use crate::matrix::{CHUNK, Matrix, Scratch};
use crate::memory::{Aligned, Shared};
use crate::pool::Pool;
use crate::simd::Simd;
use crate::tile::{self, Ahead, Left, Out, PANEL, ROWS, STREAMS};
use std::cell::RefCell;
use std::ops::Range;

/// Up to this many rows the inputs are read where they lie.
const FEW_ROWS: usize = 48;
/// Most rows that are repacked at once, so that long inputs need no second copy of themselves.
const STRIP: usize = 128 * ROWS;
/// Rows of a block when there are many: a chunk of their inputs fits a quarter of a level-two cache.
const BLOCK_ROWS: usize = 16 * ROWS;
/// Rows of a block when weights have to be widened, to pay for that over more rows.
const BLOCK_ROWS_WIDENED: usize = 64 * ROWS;
/// Panels of a block.
const BLOCK_PANELS: usize = 16;
/// Most steps of the inner dimension that are taken at once where f32 panels are read as they lie: 20 KiB of a panel.
const DEPTH: usize = 320;
/// Most steps that are taken at once where rows are few: four panels of them, and the four to come, fit a level-two cache.
const FEW_ROWS_DEPTH: usize = 640;

thread_local! {
    /// Widened panels of the thread's own part of a product.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
    /// Repacked inputs of a product that this thread called for.
    static INPUTS: RefCell<Aligned<f32>> = RefCell::new(Aligned::zeroed(0));
}

/// `out = x Wᵀ + bias`: `x` is `[rows, w.cols()]`, `out` `[rows, w.rows()]`.
pub fn matmul(pool: &Pool, x: &[f32], w: &Matrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let (inner, columns) = (w.cols(), w.rows());
    let rows = x.len() / inner.max(1);
    assert!(
        x.len() == rows * inner && out.len() == rows * columns,
        "a product of {} by {columns}x{inner} into {}",
        x.len(),
        out.len()
    );
    assert!(bias.is_none_or(|b| b.len() == columns), "a bias of the wrong width");
    if rows == 0 {
        return;
    }
    let product = Product { w, bias, out: Shared::new(out) };
    if rows <= FEW_ROWS {
        return product.of_few_rows(pool, x, rows);
    }
    in_tiles(pool, x, inner, |inputs, strip| product.of_many_rows(pool, inputs, strip));
}

/// Calls `f(inputs, their rows)` with strips of rows, in tiles.
pub(crate) fn in_tiles(pool: &Pool, x: &[f32], inner: usize, mut f: impl FnMut(&[f32], Range<usize>)) {
    let rows = x.len() / inner.max(1);
    INPUTS.with_borrow_mut(|inputs| {
        for first in (0..rows).step_by(STRIP) {
            let strip = first..(first + STRIP).min(rows);
            repack(pool, &x[strip.start * inner..strip.end * inner], inner, inputs);
            f(inputs, strip);
        }
    });
}

/// What every part of a product needs.
#[derive(Clone, Copy)]
struct Product<'a> {
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    out: Shared<f32>,
}

/// Inputs of a part: rows as they lie, or tiles of six rows side by side, step after step.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    values: &'a [f32],
    tiles: bool,
}

impl Inputs<'_> {
    /// The inputs from a row (the first of a tile, if in tiles) and step on.
    fn from(&self, row: usize, step: usize, inner: usize) -> Left {
        let start = if self.tiles { row * inner + step * ROWS } else { row * inner + step };
        let start = self.values[start..].as_ptr();
        if self.tiles { Left { start, row: 1, col: ROWS } } else { Left { start, row: inner, col: 1 } }
    }
}

/// The part of the outputs that one task computes; `inputs` begin with row `above`.
struct Part {
    rows: Range<usize>,
    panels: Range<usize>,
    above: usize,
}

impl Product<'_> {
    /// Threads take groups of panels: each weight is read from memory once.
    fn of_few_rows(self, pool: &Pool, x: &[f32], rows: usize) {
        let panels = self.w.rows().div_ceil(PANEL);
        // One part a thread: what a thread asks for ahead is its own. Groups of four suit the one-row tile.
        let each = panels.div_ceil(pool.threads()).next_multiple_of(STREAMS).max(1);
        pool.run(panels.div_ceil(each), &|task| {
            let panels = task * each..((task + 1) * each).min(panels);
            self.compute(Inputs { values: x, tiles: false }, Part { rows: 0..rows, panels, above: 0 });
        });
    }

    /// Threads take blocks of rows × panels.
    fn of_many_rows(self, pool: &Pool, inputs: &[f32], rows: Range<usize>) {
        let panels = self.w.rows().div_ceil(PANEL);
        let most = if self.w.is_f32() { BLOCK_ROWS } else { BLOCK_ROWS_WIDENED };
        let each = even(rows.len(), most).next_multiple_of(ROWS);
        let (down, across) = (rows.len().div_ceil(each), panels.div_ceil(BLOCK_PANELS));
        pool.run(down * across, &|task| {
            // Neighbouring tasks share a band of weights: it stays in the shared cache while the row blocks go by.
            let (row, panel) = (rows.start + task % down * each, task / down * BLOCK_PANELS);
            let part = Part {
                rows: row..(row + each).min(rows.end),
                panels: panel..(panel + BLOCK_PANELS).min(panels),
                above: rows.start,
            };
            self.compute(Inputs { values: inputs, tiles: true }, part);
        });
    }

    fn compute(self, inputs: Inputs, part: Part) {
        SCRATCH.with_borrow_mut(|scratch| multiply(self, inputs, part, scratch));
    }
}

/// The size of parts of at most `most` that are as even as they can be.
pub(crate) fn even(whole: usize, most: usize) -> usize {
    whole.div_ceil(whole.div_ceil(most).max(1))
}

dispatch! { fn multiply(product: Product, inputs: Inputs, part: Part, scratch: &mut Scratch) = multiply_with }

#[inline(always)]
fn multiply_with<S: Simd>(s: S, product: Product, inputs: Inputs, part: Part, scratch: &mut Scratch) {
    let Product { w, bias, out } = product;
    // A last panel with fewer than sixteen columns goes its own way.
    let whole = part.panels.start..part.panels.end.min(w.rows() / PANEL);
    if inputs.tiles {
        many_rows(s, product, inputs, &part, whole.clone(), scratch);
    } else {
        few_rows(s, product, inputs, part.rows.clone(), whole.clone(), scratch);
    }
    if part.panels.end > whole.end {
        last_columns(s, product, inputs, &part, scratch);
    }
    if let Some(bias) = bias {
        let columns = part.panels.start * PANEL..(part.panels.end * PANEL).min(w.rows());
        for row in part.rows {
            // SAFETY: each task owns these rows and columns.
            let out = unsafe { out.part(row * w.rows() + columns.start, columns.len()) };
            out.iter_mut().zip(&bias[columns.clone()]).for_each(|(y, &b)| *y += b);
        }
    }
}

/// Panel by panel, each read straight through: the weights come from memory once, in the order in which they lie.
#[inline(always)]
fn few_rows<S: Simd>(
    s: S,
    product: Product,
    inputs: Inputs,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut Scratch,
) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    if rows.len() == 1 {
        // SAFETY: this task owns these columns of the only row.
        let out = unsafe { out.part(rows.start * columns + panels.start * PANEL, panels.len() * PANEL) };
        if w.times_row(s, &inputs.values[rows.start * inner..][..inner], panels.clone(), out) {
            return;
        }
    }
    let at_once = if w.is_f32() { STREAMS } else { tile::panels_at_once::<S::Panel>(rows.len()) };
    let depth = match rows.len() {
        _ if !w.is_f32() => w.steps_at_once(at_once),
        1 => inner,
        _ => even(inner, FEW_ROWS_DEPTH),
    };
    for panel in panels.clone().step_by(at_once) {
        let width = at_once.min(panels.end - panel);
        for from in (0..inner).step_by(depth.max(1)) {
            let to = (from + depth).min(inner);
            let right = w.panels(s, panel..panel + width, from, to, scratch);
            // SAFETY: these rows of `x` and these rows and panels of `out` exist, and no other task writes them; all of the
            // panels have sixteen columns and `to - from` steps.
            unsafe {
                let left = inputs.from(rows.start, from, inner);
                let start = out.get().add(rows.start * columns + panel * PANEL);
                let out = Out { start, row: columns, panel: PANEL };
                // Fewer rows leave no time between two lines that memory could be idle in.
                if w.is_f32() && rows.len() > 3 {
                    // The next chunk of these panels, or the first of the next ones.
                    let next = if to < inner { to - from } else { width * inner - from };
                    let ahead = Ahead {
                        start: right.start.wrapping_add(next * PANEL),
                        stream: inner * PANEL,
                        step: PANEL / rows.len().div_ceil(ROWS),
                    };
                    tile::block_with::<S::Panel, true>(
                        s.panel(),
                        rows.len(),
                        width,
                        to - from,
                        left,
                        right,
                        out,
                        ahead,
                        from > 0,
                    );
                } else {
                    tile::block(s.panel(), rows.len(), width, to - from, left, right, out, from > 0);
                }
            }
        }
    }
}

/// Chunk by chunk of the inner dimension: the chunk of a tile's panels stays in a near cache, widened once, while all rows go by.
#[inline(always)]
fn many_rows<S: Simd>(
    s: S,
    product: Product,
    inputs: Inputs,
    part: &Part,
    panels: Range<usize>,
    scratch: &mut Scratch,
) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let at_once = tile::panels_at_once::<S::Panel>(ROWS);
    let depth = if w.is_f32() { even(inner, DEPTH) } else { CHUNK };
    let tiles = part.rows.len().div_ceil(ROWS);
    for from in (0..inner).step_by(depth.max(1)) {
        let to = (from + depth).min(inner);
        for panel in panels.clone().step_by(at_once) {
            let width = at_once.min(panels.end - panel);
            let right = w.panels(s, panel..panel + width, from, to, scratch);
            // The same chunk of the next panels comes in while these rows go by: each panel is a stream, or a quarter of the only one.
            let stream = if at_once == 1 { depth.div_ceil(STREAMS) } else { inner };
            let mut ahead = Ahead {
                start: right.start.wrapping_add(width * inner * PANEL),
                stream: stream * PANEL,
                step: (PANEL * at_once / tiles).max(1),
            };
            for row in part.rows.clone().step_by(ROWS) {
                let (left, height) = (inputs.from(row - part.above, from, inner), ROWS.min(part.rows.end - row));
                // SAFETY: as in `few_rows`; the repacked inputs hold whole tiles.
                unsafe {
                    let start = out.get().add(row * columns + panel * PANEL);
                    let out = Out { start, row: columns, panel: PANEL };
                    if w.is_f32() {
                        tile::block_with::<S::Panel, true>(
                            s.panel(),
                            height,
                            width,
                            to - from,
                            left,
                            right,
                            out,
                            ahead,
                            from > 0,
                        );
                    } else {
                        tile::block(s.panel(), height, width, to - from, left, right, out, from > 0);
                    }
                }
                ahead.start = ahead.start.wrapping_add((to - from) / STREAMS * ahead.step);
            }
        }
    }
}

/// Repacks rows so that the six of a tile lie side by side, step after step.
fn repack(pool: &Pool, x: &[f32], inner: usize, packed: &mut Aligned<f32>) {
    let (tile, tiles) = (ROWS * inner, (x.len() / inner.max(1)).div_ceil(ROWS));
    if packed.len() < tiles * tile {
        *packed = Aligned::zeroed(tiles * tile);
    }
    let shared = Shared::new(packed);
    const AT_ONCE: usize = 8;
    pool.run(tiles.div_ceil(AT_ONCE), &|task| {
        let first = task * AT_ONCE * tile;
        let part = &x[first..x.len().min(first + AT_ONCE * tile)];
        for (i, rows) in part.chunks(tile).enumerate() {
            // SAFETY: each task has its own tiles.
            let packed = unsafe { shared.part(first + i * tile, tile) };
            for (lane, row) in rows.chunks_exact(inner).enumerate() {
                packed.chunks_exact_mut(ROWS).zip(row).for_each(|(six, &value)| six[lane] = value);
            }
        }
    });
}

/// The last panel when its columns do not fill it: through a small buffer, then only the columns that exist.
#[inline(always)]
fn last_columns<S: Simd>(s: S, product: Product, inputs: Inputs, part: &Part, scratch: &mut Scratch) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let (panel, left_over) = (columns / PANEL, columns % PANEL);
    for row in part.rows.clone().step_by(ROWS) {
        let height = ROWS.min(part.rows.end - row);
        let mut sums = [0.0f32; ROWS * PANEL];
        for from in (0..inner).step_by(CHUNK) {
            let to = (from + CHUNK).min(inner);
            let right = w.panels(s, panel..panel + 1, from, to, scratch);
            let buffer = Out { start: sums.as_mut_ptr(), row: PANEL, panel: PANEL };
            let left = inputs.from(row - part.above, from, inner);
            // SAFETY: `height` rows of inputs exist from `row` on, the chunk holds its steps, the buffer a whole tile.
            unsafe {
                tile::block(s.panel(), height, 1, to - from, left, right, buffer, from > 0);
            }
        }
        for lane in 0..height {
            // SAFETY: the task that owns the last panel owns these columns of its rows.
            let out = unsafe { out.part((row + lane) * columns + panel * PANEL, left_over) };
            out.copy_from_slice(&sums[lane * PANEL..][..left_over]);
        }
    }
}
