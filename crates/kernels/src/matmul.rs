//! `y = x Wᵀ + b`, for one row or thousands, with the same bits for a row either way.
//!
//! Few rows: each thread takes a range of panels and reads each weight from memory once,
//! prefetching the next panels. Many rows: threads take blocks of rows × panels, and each chunk of
//! weights is widened to f32 once per block. Inputs are not repacked: a tile's six input rows are
//! six memory streams, and repacking costs more than it gains.

use crate::dispatch;
use crate::matrix::{CHUNK, Matrix, PanelScratch};
use crate::memory::DisjointMut;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::tile::{self, Left, ONE_LINE, Out, PANEL, Prefetch, SOME_LINES, STREAMS, TILE_ROWS};
use std::cell::RefCell;
use std::ops::Range;

/// Up to this many rows, the product is split by panels only.
const FEW_ROWS: usize = 48;
/// Rows per block: one chunk of their inputs fits in a quarter of the L2 cache.
const BLOCK_ROWS: usize = 16 * TILE_ROWS;
/// Rows per block when weights must be widened: more rows amortize the widening.
const BLOCK_ROWS_WIDENED: usize = 64 * TILE_ROWS;
/// Panels per block.
const BLOCK_PANELS: usize = 16;
/// Maximum chunk of the inner dimension for few rows: four panels of it, plus the next four that
/// are being prefetched, fit in the L2 cache.
const FEW_ROWS_DEPTH: usize = 3 * CHUNK;

thread_local! {
    /// Widened panels of this thread's block.
    static SCRATCH: RefCell<PanelScratch> = RefCell::new(PanelScratch::new());
}

/// Computes `out = x Wᵀ + bias`: `x` is `[rows, w.cols()]`, `out` is `[rows, w.rows()]`.
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
    let product = Product { x, w, bias, out: DisjointMut::new(out), few: rows <= FEW_ROWS };
    if product.few { product.compute_few_rows(pool, rows) } else { product.compute_many_rows(pool, rows) }
}

/// Operands of a product, shared by all tasks.
#[derive(Clone, Copy)]
struct Product<'a> {
    x: &'a [f32],
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
    out: DisjointMut<f32>,
    few: bool,
}

/// Block of `out` that one task computes.
struct OutputBlock {
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Product<'_> {
    /// Splits by panels, so each weight is read from memory once.
    fn compute_few_rows(self, pool: &Pool, rows: usize) {
        let panels = self.w.rows().div_ceil(PANEL);
        // One block per thread, so a thread prefetches only panels that it uses itself. Blocks are
        // multiples of the four panels that the one-row tile takes.
        let each = panels.div_ceil(pool.threads()).next_multiple_of(STREAMS).max(1);
        pool.run(panels.div_ceil(each), &|task| {
            let panels = task * each..((task + 1) * each).min(panels);
            self.compute(OutputBlock { rows: 0..rows, panels });
        });
    }

    /// Splits into blocks of rows × panels.
    fn compute_many_rows(self, pool: &Pool, rows: usize) {
        let panels = self.w.rows().div_ceil(PANEL);
        let most = if self.w.is_f32() { BLOCK_ROWS } else { BLOCK_ROWS_WIDENED };
        let each = even(rows, most).next_multiple_of(TILE_ROWS);
        let (down, across) = (rows.div_ceil(each), panels.div_ceil(BLOCK_PANELS));
        pool.run(down * across, &|task| {
            // Adjacent tasks use the same panels, which stay in the shared cache across row blocks.
            let (row, panel) = (task % down * each, task / down * BLOCK_PANELS);
            let panels = panel..(panel + BLOCK_PANELS).min(panels);
            self.compute(OutputBlock { rows: row..(row + each).min(rows), panels });
        });
    }

    fn compute(self, block: OutputBlock) {
        SCRATCH.with_borrow_mut(|scratch| multiply_task(self, block, scratch));
    }

    /// Inputs starting at row `row` and index `step` of the inner dimension.
    fn inputs(&self, row: usize, step: usize) -> Left {
        let inner = self.w.cols();
        Left { start: self.x[row * inner + step..].as_ptr(), row_stride: inner, col_stride: 1 }
    }
}

/// Splits `whole` into equal parts of at most `most`; returns their size.
pub(crate) fn even(whole: usize, most: usize) -> usize {
    whole.div_ceil(whole.div_ceil(most).max(1))
}

dispatch! { fn multiply_task(product: Product, block: OutputBlock, scratch: &mut PanelScratch) = multiply_task_with }

#[inline(always)]
fn multiply_task_with<S: Simd>(s: S, product: Product, block: OutputBlock, scratch: &mut PanelScratch) {
    let Product { w, bias, out, few, .. } = product;
    // The last panel is handled separately if it has fewer than 16 columns.
    let whole = block.panels.start..block.panels.end.min(w.rows() / PANEL);
    if few {
        multiply_few_rows(s, product, block.rows.len(), whole.clone(), scratch);
    } else {
        multiply_many_rows(s, product, block.rows.clone(), whole.clone(), scratch);
    }
    if block.panels.end > whole.end {
        multiply_last_columns(s, product, block.rows.clone(), scratch);
    }
    if let Some(bias) = bias {
        let columns = block.panels.start * PANEL..(block.panels.end * PANEL).min(w.rows());
        for row in block.rows {
            // SAFETY: only this task writes these rows and columns.
            let out = unsafe { out.part(row * w.rows() + columns.start, columns.len()) };
            out.iter_mut().zip(&bias[columns.clone()]).for_each(|(y, &b)| *y += b);
        }
    }
}

/// Goes panel by panel, each from start to end: weights are read from memory once, sequentially.
#[inline(always)]
fn multiply_few_rows<S: Simd>(s: S, product: Product, rows: usize, panels: Range<usize>, scratch: &mut PanelScratch) {
    let Product { x, w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    if rows == 1 {
        // SAFETY: only this task writes these columns of the only row.
        let out = unsafe { out.part(panels.start * PANEL, panels.len() * PANEL) };
        if w.multiply_row(s, x, panels.clone(), out) {
            return;
        }
    }
    let depth = match rows {
        _ if !w.is_f32() => CHUNK,
        1 => inner,
        _ => even(inner, FEW_ROWS_DEPTH).next_multiple_of(CHUNK),
    };
    // With one to three f32 rows the loop is already limited by memory bandwidth: no prefetch.
    let panel_memory = w.panel_memory().filter(|_| rows > 3 || !w.is_f32());
    for panel in panels.clone().step_by(STREAMS) {
        let width = STREAMS.min(panels.end - panel);
        for from in (0..inner).step_by(depth.max(1)) {
            let to = (from + depth).min(inner);
            let (steps, right) = (to - from, w.panels(s, panel..panel + width, from, to, scratch));
            // SAFETY: these rows of `x` and these rows and panels of `out` exist, and no other task
            // writes them; all of the panels have 16 columns and `steps` rows.
            unsafe {
                let left = product.inputs(0, from);
                let start = out.as_mut_ptr().add(panel * PANEL);
                let out = Out { start, row_stride: columns, panel_stride: PANEL };
                match panel_memory {
                    Some((first, bytes)) => {
                        // The next chunk of these panels, or the first chunk of the next panels.
                        let next =
                            if to < inner { panel * bytes + to * bytes / inner } else { (panel + width) * bytes };
                        let chunk = steps * bytes / inner;
                        let prefetch =
                            Prefetch::for_block::<S::Panel>(rows, steps, first.wrapping_add(next), bytes, chunk);
                        tile::multiply_block_prefetching::<_, SOME_LINES>(
                            s.panel(),
                            rows,
                            width,
                            steps,
                            left,
                            right,
                            out,
                            prefetch,
                            from > 0,
                        );
                    }
                    None => tile::multiply_block(s.panel(), rows, width, steps, left, right, out, from > 0),
                }
            }
        }
    }
}

/// Goes chunk by chunk over the inner dimension: a chunk of a tile's panels is widened once and
/// stays in the L1 or L2 cache for all rows.
#[inline(always)]
fn multiply_many_rows<S: Simd>(
    s: S,
    product: Product,
    rows: Range<usize>,
    panels: Range<usize>,
    scratch: &mut PanelScratch,
) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let panels_per_tile = tile::panels_per_tile::<S::Panel>(TILE_ROWS);
    let depth = CHUNK;
    let tiles = rows.len().div_ceil(TILE_ROWS);
    for from in (0..inner).step_by(depth.max(1)) {
        let to = (from + depth).min(inner);
        for panel in panels.clone().step_by(panels_per_tile) {
            let width = panels_per_tile.min(panels.end - panel);
            let right = w.panels(s, panel..panel + width, from, to, scratch);
            // Prefetch the same chunk of the next panels while these rows are computed. Each panel
            // is a stream; a single panel is split into four.
            let stream_stride = if panels_per_tile == 1 { depth.div_ceil(STREAMS) } else { inner };
            let mut prefetch = Prefetch {
                start: right.start.wrapping_add(width * inner * PANEL),
                stream_stride: stream_stride * PANEL,
                advance: (PANEL * panels_per_tile / tiles).max(1),
                lines: 1,
            };
            for row in rows.clone().step_by(TILE_ROWS) {
                let (left, height) = (product.inputs(row, from), TILE_ROWS.min(rows.end - row));
                // SAFETY: as in `multiply_few_rows`.
                unsafe {
                    let start = out.as_mut_ptr().add(row * columns + panel * PANEL);
                    let out = Out { start, row_stride: columns, panel_stride: PANEL };
                    if w.is_f32() {
                        tile::multiply_block_prefetching::<_, ONE_LINE>(
                            s.panel(),
                            height,
                            width,
                            to - from,
                            left,
                            right,
                            out,
                            prefetch,
                            from > 0,
                        );
                    } else {
                        tile::multiply_block(s.panel(), height, width, to - from, left, right, out, from > 0);
                    }
                }
                prefetch.start = prefetch.start.wrapping_add((to - from) / STREAMS * prefetch.advance);
            }
        }
    }
}

/// Computes the last panel when it has fewer than 16 columns: into a temporary tile, then copies
/// the columns that exist.
#[inline(always)]
fn multiply_last_columns<S: Simd>(s: S, product: Product, rows: Range<usize>, scratch: &mut PanelScratch) {
    let Product { w, out, .. } = product;
    let (inner, columns) = (w.cols(), w.rows());
    let (panel, left_over) = (columns / PANEL, columns % PANEL);
    for row in rows.clone().step_by(TILE_ROWS) {
        let height = TILE_ROWS.min(rows.end - row);
        let mut sums = [0.0f32; TILE_ROWS * PANEL];
        for from in (0..inner).step_by(CHUNK) {
            let to = (from + CHUNK).min(inner);
            let right = w.panels(s, panel..panel + 1, from, to, scratch);
            let buffer = Out { start: sums.as_mut_ptr(), row_stride: PANEL, panel_stride: PANEL };
            let left = product.inputs(row, from);
            // SAFETY: `height` input rows exist from `row` on, the chunk has `to - from` rows, the
            // buffer holds a whole tile.
            unsafe {
                tile::multiply_block(s.panel(), height, 1, to - from, left, right, buffer, from > 0);
            }
        }
        for lane in 0..height {
            // SAFETY: the task that owns the last panel owns these columns of its rows.
            let out = unsafe { out.part((row + lane) * columns + panel * PANEL, left_over) };
            out.copy_from_slice(&sums[lane * PANEL..][..left_over]);
        }
    }
}
