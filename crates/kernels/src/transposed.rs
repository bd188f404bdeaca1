//! `dx = dy W`: products with the transposed weight, for gradients.
//!
//! A weight is packed in panels of 16 outputs; its gradient needs panels of 16 inputs. Each thread
//! transposes a square of 256 × 256 weights at a time, of any format, into f32 panels that stay in
//! its cache while all its rows are multiplied. So no transposed copy of the whole weight exists,
//! and transposing costs a few percent of a product of some hundred rows.

use crate::dispatch;
use crate::matmul::even;
use crate::matrix::{CHUNK, Matrix, PanelScratch};
use crate::memory::{AlignedBuffer, DisjointMut};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::tile::{self, Left, MAX_PANELS, Out, PANEL, TILE_ROWS};
use std::cell::RefCell;
use std::ops::Range;

/// Maximum number of panels transposed at a time: with a chunk of outputs, a square.
const BAND_PANELS: usize = CHUNK / PANEL;
/// Maximum number of rows that share a transposed square.
const BLOCK_ROWS: usize = 384;

struct TransposeScratch {
    panels: PanelScratch,
    transposed: AlignedBuffer<f32>,
}

thread_local! {
    static SCRATCH: RefCell<TransposeScratch> = RefCell::new(TransposeScratch {
        panels: PanelScratch::new(),
        transposed: AlignedBuffer::zeroed(BAND_PANELS * PANEL * CHUNK),
    });
}

/// Computes `dx = dy W`, or `dx += dy W` if `add`: `dy` is `[rows, w.rows()]`, `dx` is
/// `[rows, w.cols()]`.
pub fn matmul_transposed(pool: &Pool, dy: &[f32], w: &Matrix, add: bool, dx: &mut [f32]) {
    let (inner, columns) = (w.rows(), w.cols());
    let rows = dy.len() / inner.max(1);
    assert!(
        dy.len() == rows * inner && dx.len() == rows * columns,
        "a transposed product of {} by {inner}x{columns} into {}",
        dy.len(),
        dx.len()
    );
    // Bands of equal size; rows that are decoded in place need whole squares.
    let panels = columns.div_ceil(PANEL);
    let band = if w.is_in_place() { BAND_PANELS } else { even(panels, BAND_PANELS).next_multiple_of(2) };
    let shared = DisjointMut::new(dx);
    let block = even(rows, BLOCK_ROWS).next_multiple_of(TILE_ROWS);
    let (down, across) = (rows.div_ceil(block.max(1)), panels.div_ceil(band));
    pool.run(down * across, &|task| {
        let (row, panel) = (task % down * block, task / down * band);
        let block = InputGradBlock {
            rows: row..(row + block).min(rows),
            columns: panel * PANEL..((panel + band) * PANEL).min(columns),
        };
        SCRATCH.with_borrow_mut(|scratch| multiply(dy, w, add, shared, block, scratch));
    });
}

/// Block of `dx` that one task computes.
struct InputGradBlock {
    rows: Range<usize>,
    columns: Range<usize>,
}

dispatch! { fn multiply(dy: &[f32], w: &Matrix, add: bool, dx: DisjointMut<f32>, block: InputGradBlock, scratch: &mut TransposeScratch) = multiply_with }

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    dy: &[f32],
    w: &Matrix,
    add: bool,
    dx: DisjointMut<f32>,
    block: InputGradBlock,
    scratch: &mut TransposeScratch,
) {
    let (inner, width) = (w.rows(), w.cols());
    let InputGradBlock { rows, columns } = block;
    let panels_per_tile = tile::panels_per_tile::<S::Panel>(TILE_ROWS);
    for from in (0..inner).step_by(CHUNK) {
        let to = (from + CHUNK).min(inner);
        let (depth, accumulate) = (to - from, add || from > 0);
        transpose_weights(s, w, columns.clone(), from..to, &mut scratch.panels, &mut scratch.transposed);
        let panels = scratch.transposed.chunks(panels_per_tile * depth * PANEL);
        for (column, panels) in columns.clone().step_by(panels_per_tile * PANEL).zip(panels) {
            let wide = (panels_per_tile * PANEL).min(columns.end - column);
            let right = tile::Right { start: panels.as_ptr(), row_stride: PANEL, panel_stride: depth * PANEL };
            for row in rows.clone().step_by(TILE_ROWS) {
                let height = TILE_ROWS.min(rows.end - row);
                let left = Left { start: dy[row * inner + from..].as_ptr(), row_stride: inner, col_stride: 1 };
                // Each chunk is summed separately: a single chain over a whole vocabulary of
                // outputs would lose two digits.
                let mut sums = [0.0f32; TILE_ROWS * MAX_PANELS * PANEL];
                let out = Out { start: sums.as_mut_ptr(), row_stride: MAX_PANELS * PANEL, panel_stride: PANEL };
                // SAFETY: these rows of `dy` exist, the panels have `depth` rows, the buffer holds
                // a whole tile.
                unsafe {
                    tile::multiply_block(s.panel(), height, wide.div_ceil(PANEL), depth, left, right, out, false)
                };
                for (lane, sums) in sums.chunks_exact(MAX_PANELS * PANEL).take(height).enumerate() {
                    // SAFETY: only this task writes these rows and columns.
                    let out = unsafe { dx.part((row + lane) * width + column, wide) };
                    out.iter_mut().zip(sums).for_each(|(y, x)| *y = if accumulate { *y + x } else { *x });
                }
            }
        }
    }
}

/// Transposes the weights of outputs `steps` and inputs `columns` into panels of 16 inputs,
/// `[panels][steps][16]`.
#[inline(always)]
fn transpose_weights<S: Simd>(
    s: S,
    w: &Matrix,
    columns: Range<usize>,
    steps: Range<usize>,
    scratch: &mut PanelScratch,
    transposed: &mut [f32],
) {
    let depth = steps.len();
    for first in steps.clone().step_by(PANEL) {
        let lanes = PANEL.min(steps.end - first);
        let panel = first / PANEL;
        let source = w.panels(s, panel..panel + 1, columns.start, columns.end, scratch);
        // SAFETY: a panel holds 16 floats for each of these columns.
        let source = unsafe { std::slice::from_raw_parts(source.start, columns.len() * PANEL) };
        for (index, source) in source.chunks(PANEL * PANEL).enumerate() {
            let out = &mut transposed[(index * depth + first - steps.start) * PANEL..][..lanes * PANEL];
            if lanes == PANEL && source.len() == PANEL * PANEL {
                transpose_square(s, source, out);
                continue;
            }
            let width = source.len() / PANEL;
            for (lane, out) in out.chunks_exact_mut(PANEL).enumerate() {
                (0..width).for_each(|column| out[column] = source[column * PANEL + lane]);
                out[width..].fill(0.0);
            }
        }
    }
}

/// Transposes 16 × 16 floats.
#[inline(always)]
fn transpose_square<S: Simd>(s: S, source: &[f32], out: &mut [f32]) {
    assert!(source.len() == PANEL * PANEL && out.len() == PANEL * PANEL, "squares of 16 × 16");
    for (down, across) in [(0, 0), (0, LANES), (LANES, 0), (LANES, LANES)] {
        // SAFETY: both slices are 16 × 16, and each 8 × 8 quarter lies within them.
        unsafe {
            let rows = std::array::from_fn(|row| s.load(source.as_ptr().add((down + row) * PANEL + across)));
            for (row, column) in s.transpose(rows).into_iter().enumerate() {
                s.store(out.as_mut_ptr().add((across + row) * PANEL + down), column);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Encoding;
    use crate::matrix::{DType, RowBytes};

    fn sines(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
    }

    fn agrees(pool: &Pool, w: &Matrix, rows: usize) {
        let (inner, columns) = (w.rows(), w.cols());
        let dy = sines(rows * inner, 3);
        let mut weights = vec![0.0; inner * columns];
        weights.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| w.row(row, out));
        for add in [false, true] {
            let before = sines(rows * columns, 5);
            let mut dx = before.clone();
            matmul_transposed(pool, &dy, w, add, &mut dx);
            for (i, &ours) in dx.iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let products = (0..inner).map(|n| dy[row * inner + n] as f64 * weights[n * columns + column] as f64);
                let truth = products.sum::<f64>() + if add { before[i] as f64 } else { 0.0 };
                let most = 1e-5 * (inner as f64).sqrt().max(1.0);
                assert!((ours as f64 - truth).abs() < most, "{rows} rows of {inner}x{columns}: {ours} not {truth}");
            }
        }
    }

    #[test]
    fn products_agree_with_the_transposed_matrix() {
        let pool = Pool::new(2);
        for (inner, columns) in [(1, 1), (5, 3), (16, 16), (40, 33), (300, 17), (31, 290), (257, 530)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let values = sines(inner * columns, 1);
                let w = Matrix::pack(&pool, inner, columns, dtype, &|row, out| {
                    out.copy_from_slice(&values[row * columns..][..columns]);
                });
                for rows in [0, 1, 7, 400] {
                    agrees(&pool, &w, rows);
                }
            }
        }
    }

    /// With as many outputs as a vocabulary, a single chain of sums would be several times less
    /// accurate.
    #[test]
    fn long_sums_keep_their_precision() {
        let (inner, columns) = (40_000, 32);
        // All positive, so that the sums grow.
        let [dy, values] = [(inner, 3), (inner * columns, 1)]
            .map(|(count, seed)| sines(count, seed).iter().map(|x| x.abs()).collect::<Vec<f32>>());
        let pool = Pool::new(2);
        let w = Matrix::pack(&pool, inner, columns, DType::F32, &|row, out| {
            out.copy_from_slice(&values[row * columns..][..columns]);
        });
        let mut dx = vec![0.0; columns];
        matmul_transposed(&pool, &dy, &w, false, &mut dx);
        let (mut ours, mut chain) = (0.0, 0.0);
        for (column, &sum) in dx.iter().enumerate() {
            let of = |n: usize| (dy[n], values[n * columns + column]);
            let truth: f64 = (0..inner).map(of).map(|(a, b)| a as f64 * b as f64).sum();
            ours += (sum as f64 - truth).powi(2);
            chain += ((0..inner).map(of).fold(0f32, |sum, (a, b)| a.mul_add(b, sum)) as f64 - truth).powi(2);
        }
        assert!(ours.sqrt() * 3.0 < chain.sqrt(), "{} against {}", ours.sqrt(), chain.sqrt());
    }

    struct Bytes(Vec<u8>, usize);

    impl RowBytes for Bytes {
        fn row(&self, row: usize) -> &[u8] {
            &self.0[row * self.1..][..self.1]
        }
    }

    #[test]
    fn quantized_weights_agree_with_their_decoded_values() {
        let pool = Pool::new(2);
        for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0, Encoding::Q6_K, Encoding::Q4_K] {
            let (inner, columns) = (37, 768);
            let size = columns / encoding.block_len() * encoding.block_bytes();
            // Small exponents everywhere, so that scales are moderate whatever bytes they consist
            // of.
            let bytes = (0..inner * size).map(|i| (i * 37 % 61) as u8).collect();
            let w = Matrix::encoded(&pool, inner, columns, encoding, Box::new(Bytes(bytes, size)));
            let dy = sines(5 * inner, 3);
            let mut dx = vec![0.0; 5 * columns];
            matmul_transposed(&pool, &dy, &w, false, &mut dx);
            let mut weights = vec![0.0; inner * columns];
            weights.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| w.row(row, out));
            let largest = weights.iter().fold(0f32, |most, x| most.max(x.abs())) as f64;
            for (i, &ours) in dx.iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let truth: f64 =
                    (0..inner).map(|n| dy[row * inner + n] as f64 * weights[n * columns + column] as f64).sum();
                assert!((ours as f64 - truth).abs() <= 1e-5 * largest, "{encoding}: {ours} instead of {truth}");
            }
        }
    }
}
