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
use crate::tile::{self, Left, Out, PANEL, ROWS};
use std::cell::RefCell;
use std::ops::Range;

/// Up to this many rows the inputs are read where they lie.
const FEW_ROWS: usize = 24;
/// Rows of a block when there are many: its repacked inputs (96 × 256 floats) fit a quarter of a level-two cache.
const BLOCK_ROWS: usize = 96;
/// Rows of a block when weights have to be widened, to pay for that over more rows.
const BLOCK_ROWS_WIDENED: usize = 384;
/// Panels of a block.
const BLOCK_PANELS: usize = 16;
/// Least weights (in values) a thread takes at once when rows are few: about ten microseconds of memory traffic.
const LEAST_WEIGHTS: usize = 32 * 1024;

/// What a thread needs besides its outputs.
struct Workspace {
    scratch: Scratch,
    inputs: Aligned<f32>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace {
        scratch: Scratch::new(),
        inputs: Aligned::zeroed(BLOCK_ROWS_WIDENED.div_ceil(ROWS) * ROWS * CHUNK),
    });
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
    let panels = columns.div_ceil(PANEL);
    let shared = Shared::new(out);
    let few = rows <= FEW_ROWS;
    let (block_rows, block_panels) = if few {
        let least = (LEAST_WEIGHTS / (PANEL * inner.max(1))).max(1);
        // Small products are not worth sharing out further than one part a thread; groups of four suit the one-row tile.
        (rows.max(1), least.next_multiple_of(4).min(panels.div_ceil(pool.threads()).next_multiple_of(4)))
    } else {
        (if w.is_f32() { BLOCK_ROWS } else { BLOCK_ROWS_WIDENED }, BLOCK_PANELS)
    };
    let (down, across) = (rows.div_ceil(block_rows), panels.div_ceil(block_panels.max(1)));
    pool.run(down * across, &|task| {
        // Neighbouring tasks share a band of weights: it stays in the shared cache while the row blocks go by.
        let (first_row, first_panel) = (task % down * block_rows, task / down * block_panels);
        let part = Part {
            rows: first_row..(first_row + block_rows).min(rows),
            panels: first_panel..(first_panel + block_panels).min(panels),
            repack: !few,
        };
        WORKSPACE.with_borrow_mut(|workspace| multiply(x, w, bias, shared, part, workspace));
    });
}

/// The part of the outputs that one task computes.
struct Part {
    rows: Range<usize>,
    panels: Range<usize>,
    repack: bool,
}

dispatch! { fn multiply(x: &[f32], w: &Matrix, bias: Option<&[f32]>, out: Shared<f32>, part: Part, workspace: &mut Workspace) = multiply_with }

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    x: &[f32],
    w: &Matrix,
    bias: Option<&[f32]>,
    out: Shared<f32>,
    part: Part,
    workspace: &mut Workspace,
) {
    // A last panel with fewer than sixteen columns goes its own way.
    let whole = part.panels.start..part.panels.end.min(w.rows() / PANEL);
    if part.repack {
        many_rows(s, x, w, out, part.rows.clone(), whole.clone(), workspace);
    } else {
        few_rows(s, x, w, out, part.rows.clone(), whole.clone(), workspace);
    }
    if part.panels.end > whole.end {
        last_columns(s, x, w, out, &part, workspace);
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
    x: &[f32],
    w: &Matrix,
    out: Shared<f32>,
    rows: Range<usize>,
    panels: Range<usize>,
    workspace: &mut Workspace,
) {
    let (inner, columns, at_once) = (w.cols(), w.rows(), tile::panels_at_once(rows.len()));
    let depth = if w.is_f32() { inner } else { w.steps_at_once(at_once) };
    for panel in panels.clone().step_by(at_once) {
        let width = at_once.min(panels.end - panel);
        for from in (0..inner).step_by(depth) {
            let to = (from + depth).min(inner);
            let right = w.panels(s, panel..panel + width, from, to, &mut workspace.scratch);
            // SAFETY: these rows of `x` and these rows and panels of `out` exist, and no other task writes them; all of the
            // panels have sixteen columns and `to - from` steps.
            unsafe {
                let left = Left { start: x.as_ptr().add(rows.start * inner + from), row: inner, col: 1 };
                let out =
                    Out { start: out.get().add(rows.start * columns + panel * PANEL), row: columns, panel: PANEL };
                tile::block(s, rows.len(), width, to - from, left, right, out, from > 0);
            }
        }
    }
}

/// Chunk by chunk of the inner dimension: the inputs are repacked once for all panels, each panel is widened once for all rows.
#[inline(always)]
fn many_rows<S: Simd>(
    s: S,
    x: &[f32],
    w: &Matrix,
    out: Shared<f32>,
    rows: Range<usize>,
    panels: Range<usize>,
    workspace: &mut Workspace,
) {
    let (inner, columns) = (w.cols(), w.rows());
    for from in (0..inner).step_by(CHUNK) {
        let to = (from + CHUNK).min(inner);
        repack(x, inner, rows.clone(), from..to, &mut workspace.inputs);
        for panel in panels.clone() {
            let right = w.panels(s, panel..panel + 1, from, to, &mut workspace.scratch);
            for row in (0..rows.len()).step_by(ROWS) {
                // SAFETY: as in `few_rows`; the repacked inputs hold whole tiles.
                unsafe {
                    let left = Left { start: workspace.inputs.as_ptr().add(row * (to - from)), row: 1, col: ROWS };
                    let start = out.get().add((rows.start + row) * columns + panel * PANEL);
                    let out = Out { start, row: columns, panel: PANEL };
                    tile::block(s, ROWS.min(rows.len() - row), 1, to - from, left, right, out, from > 0);
                }
            }
        }
    }
}

/// Copies a block of inputs so that the six rows of a tile lie side by side, step after step.
#[inline(always)]
pub(crate) fn repack(x: &[f32], inner: usize, rows: Range<usize>, steps: Range<usize>, packed: &mut [f32]) {
    let depth = steps.len();
    for (tile, first) in rows.clone().step_by(ROWS).enumerate() {
        let packed = &mut packed[tile * ROWS * depth..][..ROWS * depth];
        for lane in 0..ROWS.min(rows.end - first) {
            let row = &x[(first + lane) * inner + steps.start..][..depth];
            row.iter().enumerate().for_each(|(step, &value)| packed[step * ROWS + lane] = value);
        }
    }
}

/// The last panel when its columns do not fill it: through a small buffer, then only the columns that exist.
#[inline(always)]
fn last_columns<S: Simd>(s: S, x: &[f32], w: &Matrix, out: Shared<f32>, part: &Part, workspace: &mut Workspace) {
    let (inner, columns) = (w.cols(), w.rows());
    let (panel, left_over) = (columns / PANEL, columns % PANEL);
    for row in part.rows.clone().step_by(ROWS) {
        let height = ROWS.min(part.rows.end - row);
        let mut sums = [0.0f32; ROWS * PANEL];
        for from in (0..inner).step_by(CHUNK) {
            let to = (from + CHUNK).min(inner);
            let right = w.panels(s, panel..panel + 1, from, to, &mut workspace.scratch);
            let buffer = Out { start: sums.as_mut_ptr(), row: PANEL, panel: PANEL };
            // SAFETY: `height` rows of `x` exist from `row` on, the chunk holds its steps, the buffer a whole tile.
            unsafe {
                let left = Left { start: x.as_ptr().add(row * inner + from), row: inner, col: 1 };
                tile::block(s, height, 1, to - from, left, right, buffer, from > 0);
            }
        }
        for lane in 0..height {
            // SAFETY: the task that owns the last panel owns these columns of its rows.
            let out = unsafe { out.part((row + lane) * columns + panel * PANEL, left_over) };
            out.copy_from_slice(&sums[lane * PANEL..][..left_over]);
        }
    }
}
