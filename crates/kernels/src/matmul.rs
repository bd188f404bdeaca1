//! `y = x Wᵀ + b`, for one row or thousands, with the same bits for a row either way.
//!
//! Few rows: threads take groups of panels, and each weight is read from memory once, while those to come are asked for. Many rows:
//! threads take blocks of rows × panels, and chunks of weights are widened once for all rows of a block. Inputs are read where they
//! lie: a tile's six rows are six streams, and repacking them costs more than it gains.

use crate::dispatch;
use crate::matrix::{CHUNK, Matrix, Scratch};
use crate::memory::Shared;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::tile::{self, Ahead, Left, Out, PANEL, ROWS, STREAMS};
use std::cell::RefCell;
use std::ops::Range;

/// Up to this many rows are few.
const FEW_ROWS: usize = 48;
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
    let product = Product { x, w, bias, out: Shared::new(out), few: rows <= FEW_ROWS };
    if product.few { product.of_few_rows(pool, rows) } else { product.of_many_rows(pool, rows) }
}

/// What every part of a product needs.
#[derive(Clone, Copy)]
struct Product<'a> {
    x: &'a [f32],
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    out: Shared<f32>,
    few: bool,
}

/// The part of the outputs that one task computes.
struct Part {
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Product<'_> {
    /// Threads take groups of panels: each weight is read from memory once.
    fn of_few_rows(self, pool: &Pool, rows: usize) {
        let panels = self.w.rows().div_ceil(PANEL);
        // One part a thread: what a thread asks for ahead is its own. Groups of four suit the one-row tile.
        let each = panels.div_ceil(pool.threads()).next_multiple_of(STREAMS).max(1);
        pool.run(panels.div_ceil(each), &|task| {
            let panels = task * each..((task + 1) * each).min(panels);
            self.compute(Part { rows: 0..rows, panels });
        });
    }

    /// Threads take blocks of rows × panels.
    fn of_many_rows(self, pool: &Pool, rows: usize) {
        let panels = self.w.rows().div_ceil(PANEL);
        let most = if self.w.is_f32() { BLOCK_ROWS } else { BLOCK_ROWS_WIDENED };
        let each = even(rows, most).next_multiple_of(ROWS);
        let (down, across) = (rows.div_ceil(each), panels.div_ceil(BLOCK_PANELS));
        pool.run(down * across, &|task| {
            // Neighbouring tasks share a band of weights: it stays in the shared cache while the row blocks go by.
            let (row, panel) = (task % down * each, task / down * BLOCK_PANELS);
            let panels = panel..(panel + BLOCK_PANELS).min(panels);
            self.compute(Part { rows: row..(row + each).min(rows), panels });
        });
    }

    fn compute(self, part: Part) {
        SCRATCH.with_borrow_mut(|scratch| multiply(self, part, scratch));
    }

    /// The inputs from a row and step on.
    fn inputs(&self, row: usize, step: usize) -> Left {
        let inner = self.w.cols();
        Left { start: self.x[row * inner + step..].as_ptr(), row: inner, col: 1 }
    }
}

/// The size of parts of at most `most` that are as even as they can be.
pub(crate) fn even(whole: usize, most: usize) -> usize {
    whole.div_ceil(whole.div_ceil(most).max(1))
}

dispatch! { fn multiply(product: Product, part: Part, scratch: &mut Scratch) = multiply_with }

#[inline(always)]
fn multiply_with<S: Simd>(s: S, product: Product, part: Part, scratch: &mut Scratch) {
    let Product { w, bias, out, few, .. } = product;
    // A last panel with fewer than sixteen columns goes its own way.
    let whole = part.panels.start..part.panels.end.min(w.rows() / PANEL);
    if few {
        few_rows(s, product, part.rows.len(), whole.clone(), scratch);
    } else {
        many_rows(s, product, part.rows.clone(), whole.clone(), scratch);
    }
    if part.panels.end > whole.end {
        last_columns(s, product, part.rows.clone(), scratch);
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
fn few_rows<S: Simd>(s: S, product: Product, rows: usize, panels: Range<usize>, scratch: &mut Scratch) {
    let Product { x, w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    if rows == 1 {
        // SAFETY: this task owns these columns of the only row.
        let out = unsafe { out.part(panels.start * PANEL, panels.len() * PANEL) };
        if w.times_row(s, x, panels.clone(), out) {
            return;
        }
    }
    let depth = match rows {
        _ if !w.is_f32() => w.steps_at_once(STREAMS),
        1 => inner,
        _ => even(inner, FEW_ROWS_DEPTH),
    };
    // One to three rows of f32 leave no time that memory could be idle in.
    let place = w.place().filter(|_| rows > 3 || !w.is_f32());
    for panel in panels.clone().step_by(STREAMS) {
        let width = STREAMS.min(panels.end - panel);
        for from in (0..inner).step_by(depth.max(1)) {
            let to = (from + depth).min(inner);
            let (steps, right) = (to - from, w.panels(s, panel..panel + width, from, to, scratch));
            // SAFETY: these rows of `x` and these rows and panels of `out` exist, and no other task writes them; all of the
            // panels have sixteen columns and `steps` steps.
            unsafe {
                let left = product.inputs(0, from);
                let start = out.get().add(panel * PANEL);
                let out = Out { start, row: columns, panel: PANEL };
                match place {
                    Some((first, bytes)) => {
                        // The next chunk of these panels, or the first of the next ones.
                        let next =
                            if to < inner { panel * bytes + to * bytes / inner } else { (panel + width) * bytes };
                        let chunk = steps * bytes / inner;
                        let ahead = Ahead::of::<S::Panel>(rows, steps, first.wrapping_add(next), bytes, chunk);
                        tile::block_asking(s.panel(), rows, width, steps, left, right, out, ahead, from > 0);
                    }
                    None => tile::block(s.panel(), rows, width, steps, left, right, out, from > 0),
                }
            }
        }
    }
}

/// Chunk by chunk of the inner dimension: the chunk of a tile's panels stays in a near cache, widened once, while all rows go by.
#[inline(always)]
fn many_rows<S: Simd>(s: S, product: Product, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let at_once = tile::panels_at_once::<S::Panel>(ROWS);
    let depth = if w.is_f32() { even(inner, DEPTH) } else { CHUNK };
    let tiles = rows.len().div_ceil(ROWS);
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
                lines: 1,
            };
            for row in rows.clone().step_by(ROWS) {
                let (left, height) = (product.inputs(row, from), ROWS.min(rows.end - row));
                // SAFETY: as in `few_rows`.
                unsafe {
                    let start = out.get().add(row * columns + panel * PANEL);
                    let out = Out { start, row: columns, panel: PANEL };
                    if w.is_f32() {
                        tile::block_asking(s.panel(), height, width, to - from, left, right, out, ahead, from > 0);
                    } else {
                        tile::block(s.panel(), height, width, to - from, left, right, out, from > 0);
                    }
                }
                ahead.start = ahead.start.wrapping_add((to - from) / STREAMS * ahead.step);
            }
        }
    }
}

/// The last panel when its columns do not fill it: through a small buffer, then only the columns that exist.
#[inline(always)]
fn last_columns<S: Simd>(s: S, product: Product, rows: Range<usize>, scratch: &mut Scratch) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let (panel, left_over) = (columns / PANEL, columns % PANEL);
    for row in rows.clone().step_by(ROWS) {
        let height = ROWS.min(rows.end - row);
        let mut sums = [0.0f32; ROWS * PANEL];
        for from in (0..inner).step_by(CHUNK) {
            let to = (from + CHUNK).min(inner);
            let right = w.panels(s, panel..panel + 1, from, to, scratch);
            let buffer = Out { start: sums.as_mut_ptr(), row: PANEL, panel: PANEL };
            let left = product.inputs(row, from);
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
