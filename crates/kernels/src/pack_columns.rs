//! Packing of a matrix whose transpose is stored: `[cols, rows]`, as the linear layers of GPT-2 and
//! the encoders of many autoencoders.
//!
//! A panel row holds one column's elements of 16 adjacent rows, which are adjacent in storage too,
//! so packing copies short runs and transposes nothing.

use crate::memory::{AlignedBuffer, DisjointMut, Pod};
use crate::pool::Pool;
use crate::tile::PANEL;

/// Panels of one task: its part of a column is 512 bytes of f32, whole cache lines that the
/// hardware prefetches together.
const PANELS: usize = 8;

/// Packs `rows` × `cols` elements into panels. `fill(col, row, out)` writes the elements of a
/// column from `row` on; `store(wide, out)` writes one panel row.
pub(crate) fn pack_columns<T: Pod>(
    pool: &Pool,
    rows: usize,
    cols: usize,
    fill: &(dyn Fn(usize, usize, &mut [f32]) + Sync),
    store: impl Fn(&[f32], &mut [T]) + Sync,
) -> AlignedBuffer<T> {
    let panels = rows.div_ceil(PANEL);
    let mut data = AlignedBuffer::<T>::zeroed_in_slab(pool, panels * PANEL * cols);
    let shared = DisjointMut::new(&mut data);
    pool.run(panels.div_ceil(PANELS), &|task| {
        let first = task * PANELS;
        let count = PANELS.min(panels - first);
        let len = (count * PANEL).min(rows - first * PANEL);
        // SAFETY: each task writes its own panels.
        let out = unsafe { shared.part(first * PANEL * cols, count * PANEL * cols) };
        // Rows beyond the matrix stay 0.
        let mut column = [0.0; PANELS * PANEL];
        for col in 0..cols {
            fill(col, first * PANEL, &mut column[..len]);
            for (panel, wide) in column.chunks_exact(PANEL).take(count).enumerate() {
                store(wide, &mut out[(panel * cols + col) * PANEL..][..PANEL]);
            }
        }
    });
    data
}

#[cfg(test)]
mod tests {
    use crate::{DType, Matrix, Pool, matmul};

    #[test]
    fn a_matrix_is_the_same_packed_by_rows_or_by_columns() {
        let pool = Pool::new(2);
        let value = |row: usize, col: usize| ((row * 31 + col * 7) % 64) as f32 * 0.25 - 3.0;
        for (rows, cols) in [(1, 1), (16, 8), (17, 5), (129, 64), (300, 40)] {
            for dtype in [DType::F32, DType::Bf16, DType::F16, DType::Q8] {
                let by_rows = Matrix::pack(&pool, rows, cols, dtype, &|row, out| {
                    out.iter_mut().enumerate().for_each(|(col, x)| *x = value(row, col));
                });
                let by_columns = Matrix::pack_columns(&pool, rows, cols, dtype, &|col, row, out| {
                    out.iter_mut().enumerate().for_each(|(index, x)| *x = value(row + index, col));
                });
                let (mut a, mut b) = (vec![0.0; cols], vec![1.0; cols]);
                for row in 0..rows {
                    by_rows.row(row, &mut a);
                    by_columns.row(row, &mut b);
                    assert_eq!(a, b, "row {row} of {rows}x{cols} {dtype:?}");
                }
                // A product reads whole panels.
                let x: Vec<f32> = (0..cols).map(|col| col as f32 * 0.125).collect();
                let (mut a, mut b) = (vec![0.0; rows], vec![1.0; rows]);
                matmul(&pool, &x, &by_rows, None, &mut a);
                matmul(&pool, &x, &by_columns, None, &mut b);
                assert_eq!(a, b, "product of {rows}x{cols} {dtype:?}");
            }
        }
    }
}
