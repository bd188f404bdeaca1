//! `dx = dy W`: products with a weight turned on its side, for gradients.
//!
//! A weight lies in panels of sixteen outputs; its gradient wants panels of sixteen inputs. A thread turns a square of 256 × 256 weights at a
//! time, of whatever format, into f32 panels that stay in its cache while all its rows go by. So nothing of the weight's size is
//! ever made, and the turning costs a few percent of a product of some hundred rows.

use crate::dispatch;
use crate::matmul::even;
use crate::matrix::{CHUNK, Matrix, Scratch};
use crate::memory::{Aligned, Shared};
use crate::pool::Pool;
use crate::simd::{LANES, Simd};
use crate::tile::{self, Left, MOST_PANELS, Out, PANEL, ROWS};
use std::cell::RefCell;
use std::ops::Range;

/// Most panels that are turned at once: with a chunk of steps, a square.
const BAND: usize = CHUNK / PANEL;
/// Most rows that share a turned square.
const BLOCK_ROWS: usize = 384;

struct Workspace {
    scratch: Scratch,
    turned: Aligned<f32>,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace {
        scratch: Scratch::new(),
        turned: Aligned::zeroed(BAND * PANEL * CHUNK),
    });
}

/// `dx = dy W`, or `dx += dy W` when `add`: `dy` is `[rows, w.rows()]`, `dx` `[rows, w.cols()]`.
pub fn matmul_turned(pool: &Pool, dy: &[f32], w: &Matrix, add: bool, dx: &mut [f32]) {
    let (inner, columns) = (w.rows(), w.cols());
    let rows = dy.len() / inner.max(1);
    assert!(
        dy.len() == rows * inner && dx.len() == rows * columns,
        "a turned product of {} by {inner}x{columns} into {}",
        dy.len(),
        dx.len()
    );
    // Parts of equal size; formats in blocks are decoded in whole squares.
    let panels = columns.div_ceil(PANEL);
    let band = if w.is_in_place() { BAND } else { even(panels, BAND).next_multiple_of(2) };
    let shared = Shared::new(dx);
    let block = even(rows, BLOCK_ROWS).next_multiple_of(ROWS);
    let (down, across) = (rows.div_ceil(block.max(1)), panels.div_ceil(band));
    pool.run(down * across, &|task| {
        let (row, panel) = (task % down * block, task / down * band);
        let part =
            Part { rows: row..(row + block).min(rows), columns: panel * PANEL..((panel + band) * PANEL).min(columns) };
        WORKSPACE.with_borrow_mut(|workspace| multiply(dy, w, add, shared, part, workspace));
    });
}

/// The part of the outputs that one task computes.
struct Part {
    rows: Range<usize>,
    columns: Range<usize>,
}

dispatch! { fn multiply(dy: &[f32], w: &Matrix, add: bool, dx: Shared<f32>, part: Part, workspace: &mut Workspace) = multiply_with }

#[inline(always)]
fn multiply_with<S: Simd>(
    s: S,
    dy: &[f32],
    w: &Matrix,
    add: bool,
    dx: Shared<f32>,
    part: Part,
    workspace: &mut Workspace,
) {
    let (inner, width) = (w.rows(), w.cols());
    let Part { rows, columns } = part;
    let at_once = tile::panels_at_once::<S::Panel>(ROWS);
    for from in (0..inner).step_by(CHUNK) {
        let to = (from + CHUNK).min(inner);
        let (depth, go_on) = (to - from, add || from > 0);
        turn(s, w, columns.clone(), from..to, &mut workspace.scratch, &mut workspace.turned);
        let panels = workspace.turned.chunks(at_once * depth * PANEL);
        for (column, panels) in columns.clone().step_by(at_once * PANEL).zip(panels) {
            let wide = (at_once * PANEL).min(columns.end - column);
            let right = tile::Right { start: panels.as_ptr(), step: PANEL, panel: depth * PANEL };
            for row in rows.clone().step_by(ROWS) {
                let height = ROWS.min(rows.end - row);
                let left = Left { start: dy[row * inner + from..].as_ptr(), row: inner, col: 1 };
                // Each chunk is summed up by itself: over a vocabulary of outputs one chain of sums would lose two digits.
                let mut sums = [0.0f32; ROWS * MOST_PANELS * PANEL];
                let out = Out { start: sums.as_mut_ptr(), row: MOST_PANELS * PANEL, panel: PANEL };
                // SAFETY: these rows of `dy` exist, the panels hold their steps, the buffer holds a whole tile.
                unsafe { tile::block(s.panel(), height, wide.div_ceil(PANEL), depth, left, right, out, false) };
                for (lane, sums) in sums.chunks_exact(MOST_PANELS * PANEL).take(height).enumerate() {
                    // SAFETY: these rows and columns are this task's.
                    let out = unsafe { dx.part((row + lane) * width + column, wide) };
                    out.iter_mut().zip(sums).for_each(|(y, x)| *y = if go_on { *y + x } else { *x });
                }
            }
        }
    }
}

/// Turns the weights of outputs `steps` and inputs `columns` into panels of sixteen inputs, step after step of the outputs.
#[inline(always)]
fn turn<S: Simd>(
    s: S,
    w: &Matrix,
    columns: Range<usize>,
    steps: Range<usize>,
    scratch: &mut Scratch,
    turned: &mut [f32],
) {
    let depth = steps.len();
    for first in steps.clone().step_by(PANEL) {
        let lanes = PANEL.min(steps.end - first);
        let panel = first / PANEL;
        let source = w.panels(s, panel..panel + 1, columns.start, columns.end, scratch);
        // SAFETY: a panel holds sixteen floats for each of these columns.
        let source = unsafe { std::slice::from_raw_parts(source.start, columns.len() * PANEL) };
        for (place, source) in source.chunks(PANEL * PANEL).enumerate() {
            let out = &mut turned[(place * depth + first - steps.start) * PANEL..][..lanes * PANEL];
            if lanes == PANEL && source.len() == PANEL * PANEL {
                turn_square(s, source, out);
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

/// Transposes sixteen by sixteen numbers.
#[inline(always)]
fn turn_square<S: Simd>(s: S, source: &[f32], out: &mut [f32]) {
    assert!(source.len() == PANEL * PANEL && out.len() == PANEL * PANEL, "a square of sixteen");
    for (down, across) in [(0, 0), (0, LANES), (LANES, 0), (LANES, LANES)] {
        // SAFETY: both are squares of sixteen, and each quarter of eight lies within them.
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

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
    }

    fn agrees(pool: &Pool, w: &Matrix, rows: usize) {
        let (inner, columns) = (w.rows(), w.cols());
        let dy = numbers(rows * inner, 3);
        let mut weights = vec![0.0; inner * columns];
        weights.chunks_exact_mut(columns).enumerate().for_each(|(row, out)| w.row(row, out));
        for add in [false, true] {
            let before = numbers(rows * columns, 5);
            let mut dx = before.clone();
            matmul_turned(pool, &dy, w, add, &mut dx);
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
    fn a_turned_product_is_the_product_with_the_transpose() {
        let pool = Pool::new(2);
        for (inner, columns) in [(1, 1), (5, 3), (16, 16), (40, 33), (300, 17), (31, 290), (257, 530)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                let values = numbers(inner * columns, 1);
                let w = Matrix::pack(&pool, inner, columns, dtype, &|row, out| {
                    out.copy_from_slice(&values[row * columns..][..columns]);
                });
                for rows in [0, 1, 7, 400] {
                    agrees(&pool, &w, rows);
                }
            }
        }
    }

    /// As many outputs as a vocabulary has: one chain of sums would be several times as far off.
    #[test]
    fn long_sums_keep_their_digits() {
        let (inner, columns) = (40_000, 32);
        // Of one sign, so that the sums grow.
        let [dy, values] = [(inner, 3), (inner * columns, 1)]
            .map(|(count, seed)| numbers(count, seed).iter().map(|x| x.abs()).collect::<Vec<f32>>());
        let pool = Pool::new(2);
        let w = Matrix::pack(&pool, inner, columns, DType::F32, &|row, out| {
            out.copy_from_slice(&values[row * columns..][..columns]);
        });
        let mut dx = vec![0.0; columns];
        matmul_turned(&pool, &dy, &w, false, &mut dx);
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
    fn quantised_weights_are_turned_as_they_are_decoded() {
        let pool = Pool::new(2);
        for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0, Encoding::Q6_K, Encoding::Q4_K] {
            let (inner, columns) = (37, 768);
            let size = columns / encoding.block_len() * encoding.block_bytes();
            // Small exponents everywhere: scales stay of moderate size whatever bytes they are made of.
            let bytes = (0..inner * size).map(|i| (i * 37 % 61) as u8).collect();
            let w = Matrix::encoded(&pool, inner, columns, encoding, Box::new(Bytes(bytes, size)));
            let dy = numbers(5 * inner, 3);
            let mut dx = vec![0.0; 5 * columns];
            matmul_turned(&pool, &dy, &w, false, &mut dx);
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
