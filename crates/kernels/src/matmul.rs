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
use crate::tile::{self, Left, Out, PANEL, ROWS, Right};
use std::cell::RefCell;

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
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
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
    let (inner, columns, height) = (w.cols(), w.rows(), part.rows.len());
    let whole = part.panels.start..part.panels.end.min(columns / PANEL);
    // Few rows read f32 panels straight through, in the order in which they lie; otherwise a chunk has to fit the cache or the scratch.
    let depth = if !part.repack && w.is_f32() { inner } else { CHUNK };
    let mut from = 0;
    while from < inner {
        let to = (from + depth).min(inner);
        let left = if part.repack {
            repack(x, inner, part.rows.clone(), from..to, &mut workspace.inputs);
            None
        } else {
            // SAFETY: the first row of the part lies within `x`.
            Some(Left { start: unsafe { x.as_ptr().add(part.rows.start * inner + from) }, row: inner, col: 1 })
        };
        let mut panel = whole.start;
        while panel < whole.end {
            // f32 panels of one weight lie side by side, so short tiles may take several at once.
            let width = if w.is_f32() { tile::panels_at_once(height).min(whole.end - panel) } else { 1 };
            let right = Right {
                start: w.chunk(panel, from, to, &mut workspace.scratch).as_ptr(),
                step: PANEL,
                panel: inner * PANEL,
            };
            // SAFETY: `panel + width` is at most `whole.end`, whose panels have all sixteen columns inside `out`; each task
            // writes its own rows and panels, and the chunk holds `to - from` steps.
            unsafe {
                let at = |row: usize| out.get().add((part.rows.start + row) * columns + panel * PANEL);
                match left {
                    Some(left) => {
                        let out = Out { start: at(0), row: columns, panel: PANEL };
                        tile::block(s, height, width, to - from, left, right, out, from > 0);
                    }
                    None => {
                        for row in (0..height).step_by(ROWS) {
                            let start = workspace.inputs.as_ptr().add(row * (to - from));
                            let left = Left { start, row: 1, col: ROWS };
                            let out = Out { start: at(row), row: columns, panel: PANEL };
                            tile::block(s, ROWS.min(height - row), width, to - from, left, right, out, from > 0);
                        }
                    }
                }
            }
            panel += width;
        }
        from = to;
    }
    if part.panels.end > whole.end {
        last_columns(s, x, w, out, &part, workspace);
    }
    if let Some(bias) = bias {
        let columns = part.panels.start * PANEL..(part.panels.end * PANEL).min(columns);
        for row in part.rows {
            // SAFETY: each task owns these rows and columns.
            let out = unsafe { out.part(row * w.rows() + columns.start, columns.len()) };
            out.iter_mut().zip(&bias[columns.clone()]).for_each(|(y, &b)| *y += b);
        }
    }
}

/// Copies a block of inputs so that the six rows of a tile lie side by side, step after step.
#[inline(always)]
fn repack(x: &[f32], inner: usize, rows: std::ops::Range<usize>, steps: std::ops::Range<usize>, packed: &mut [f32]) {
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
            let weights = w.chunk(panel, from, to, &mut workspace.scratch);
            let right = Right { start: weights.as_ptr(), step: PANEL, panel: 0 };
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
