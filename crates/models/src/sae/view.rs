//! Matrices as strided views of stored bytes.
//!
//! The formats store the same matrices in many ways: `[inputs, features]` or `[features, inputs]`,
//! column-major (PyTorch saves a transposed parameter with its strides), or as one slice of a
//! three-dimensional decoder. All of them are a view with two strides, so a reader only names the
//! orientation.

use super::file::Bytes;
use pellucid_kernels::encoding::{self, Encoding};
use pellucid_kernels::matrix::{BackingFile, RowBytes};
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::{DType, Matrix, Pool};
use std::sync::Arc;

/// A matrix `[rows, cols]` in stored bytes.
#[derive(Clone)]
pub(super) struct MatrixView {
    pub bytes: Bytes,
    pub element: Element,
    pub rows: usize,
    pub cols: usize,
    /// First element, in elements.
    pub offset: usize,
    /// Elements from a row to the next.
    pub row_stride: usize,
    /// Elements from a column to the next.
    pub col_stride: usize,
}

/// Dtype of a stored element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
    F64,
}

impl Element {
    pub fn size(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::F64 => 8,
        }
    }

    /// Encoding of the kernels; `None` for f64, which becomes f32 in memory.
    fn encoding(self) -> Option<Encoding> {
        match self {
            Element::F32 => Some(Encoding::F32),
            Element::F16 => Some(Encoding::F16),
            Element::Bf16 => Some(Encoding::BF16),
            Element::F64 => None,
        }
    }

    /// In-memory dtype that holds the elements exactly (f64 is rounded to f32).
    pub fn dtype(self) -> DType {
        match self {
            Element::F32 | Element::F64 => DType::F32,
            Element::F16 => DType::F16,
            Element::Bf16 => DType::Bf16,
        }
    }

    /// Decodes contiguous elements.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self.encoding() {
            Some(encoding) => encoding::decode(encoding, bytes, out),
            None => {
                for (x, bytes) in out.iter_mut().zip(bytes.chunks_exact(8)) {
                    *x = f64::from_le_bytes(bytes.try_into().unwrap_or_default()) as f32;
                }
            }
        }
    }
}

impl MatrixView {
    /// The transposed matrix.
    pub fn transposed(mut self) -> MatrixView {
        std::mem::swap(&mut self.rows, &mut self.cols);
        std::mem::swap(&mut self.row_stride, &mut self.col_stride);
        self
    }

    /// Decodes a row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let (bytes, size) = (self.bytes.get(), self.element.size());
        let first = self.offset + row * self.row_stride;
        if self.col_stride == 1 {
            return self.element.decode(&bytes[first * size..][..out.len() * size], out);
        }
        for (column, x) in out.iter_mut().enumerate() {
            let at = (first + column * self.col_stride) * size;
            self.element.decode(&bytes[at..at + size], std::slice::from_mut(x));
        }
    }

    /// Decodes elements of a column, from `row` on. Only for views with adjacent rows.
    fn column(&self, col: usize, row: usize, out: &mut [f32]) {
        let size = self.element.size();
        let at = (self.offset + col * self.col_stride + row) * size;
        self.element.decode(&self.bytes.get()[at..][..out.len() * size], out);
    }

    /// Packs the matrix for products, in its stored dtype.
    pub fn pack(&self, pool: &Pool) -> Matrix {
        let (rows, cols, dtype) = (self.rows, self.cols, self.element.dtype());
        let packed = match self.row_stride {
            1 => Matrix::pack_columns(pool, rows, cols, dtype, &|col, row, out| self.column(col, row, out)),
            _ => Matrix::pack(pool, rows, cols, dtype, &|row, out| self.row(row, out)),
        };
        self.bytes.release_pages();
        packed
    }

    /// Bytes of the packed matrix.
    pub fn packed_bytes(&self) -> usize {
        Matrix::packed_bytes(self.rows, self.cols, self.element.dtype())
    }

    /// Releases resident pages of the file.
    pub fn release_pages(&self) {
        self.bytes.release_pages();
    }

    /// Keeps the matrix row by row: mapped in place if its rows are contiguous in the file, else
    /// copied once in the stored dtype.
    pub fn into_rows(self, pool: &Pool) -> Matrix {
        let (rows, cols) = (self.rows, self.cols);
        match self.element.encoding() {
            Some(encoding) if self.col_stride == 1 || cols == 1 => {
                Matrix::encoded(pool, rows, cols, encoding, Box::new(MappedRows(self)))
            }
            Some(encoding) => {
                let copy =
                    CopiedRows::copy(pool, rows, cols * self.element.size(), &|row, out| self.copy_row(row, out));
                self.bytes.release_pages();
                Matrix::encoded(pool, rows, cols, encoding, Box::new(copy))
            }
            None => rows_f32(pool, rows, cols, &|row, out| self.row(row, out)),
        }
    }

    /// Copies the stored elements of a row that is not contiguous.
    fn copy_row(&self, row: usize, out: &mut [u8]) {
        let (bytes, size) = (self.bytes.get(), self.element.size());
        let first = self.offset + row * self.row_stride;
        for (column, out) in out.chunks_exact_mut(size).enumerate() {
            out.copy_from_slice(&bytes[(first + column * self.col_stride) * size..][..size]);
        }
    }

    /// The first row with a NaN or infinity.
    pub fn find_non_finite(&self, pool: &Pool) -> Option<usize> {
        // In storage order first: a row of a transposed tensor is scattered over the file.
        let stored = if self.row_stride == 1 { self.clone().transposed() } else { self.clone() };
        stored.find_non_finite_row(pool).and_then(|_| self.find_non_finite_row(pool))
    }

    fn find_non_finite_row(&self, pool: &Pool) -> Option<usize> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        /// Rows of one task.
        const ROWS: usize = 64;
        let first = AtomicUsize::new(usize::MAX);
        pool.run(self.rows.div_ceil(ROWS), &|task| {
            let mut values = vec![0.0; self.cols];
            for row in task * ROWS..self.rows.min((task + 1) * ROWS) {
                self.row(row, &mut values);
                // No early exit, so that the loop vectorizes.
                if values.iter().fold(false, |bad, x| bad | !x.is_finite()) {
                    first.fetch_min(row, Ordering::Relaxed);
                    return;
                }
            }
        });
        Some(first.into_inner()).filter(|&row| row != usize::MAX)
    }
}

/// Contiguous rows of a mapped file.
struct MappedRows(MatrixView);

impl RowBytes for MappedRows {
    fn row(&self, row: usize) -> &[u8] {
        let MatrixView { bytes, element, cols, offset, row_stride, .. } = &self.0;
        &bytes.get()[(offset + row * row_stride) * element.size()..][..cols * element.size()]
    }

    fn file(&self) -> Option<Arc<dyn BackingFile>> {
        self.0.bytes.mapped().map(|file| file.clone() as Arc<dyn BackingFile>)
    }

    fn copy_row(&self, row: usize, out: &mut [u8]) {
        let MatrixView { bytes, element, offset, row_stride, .. } = &self.0;
        bytes.copy((offset + row * row_stride) * element.size(), out);
    }

    fn release_pages(&self) {
        self.0.bytes.release_pages();
    }
}

/// Rows in memory of their own.
struct CopiedRows {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl CopiedRows {
    /// Makes `rows` rows of `row_bytes` bytes; `fill(row, out)` writes one.
    fn copy(pool: &Pool, rows: usize, row_bytes: usize, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) -> CopiedRows {
        /// Adjacent rows of one task: in a transposed tensor they share cache lines.
        const ROWS: usize = 32;
        let mut bytes = vec![0u8; rows * row_bytes];
        let shared = DisjointMut::new(&mut bytes);
        pool.run(rows.div_ceil(ROWS), &|task| {
            for row in task * ROWS..rows.min((task + 1) * ROWS) {
                // SAFETY: each row is written by one task.
                fill(row, unsafe { shared.part(row * row_bytes, row_bytes) });
            }
        });
        CopiedRows { bytes, row_bytes }
    }
}

impl RowBytes for CopiedRows {
    fn row(&self, row: usize) -> &[u8] {
        &self.bytes[row * self.row_bytes..][..self.row_bytes]
    }
}

/// Makes an f32 matrix that is kept row by row; `fill(row, out)` writes one row.
pub(super) fn rows_f32(pool: &Pool, rows: usize, cols: usize, fill: &(dyn Fn(usize, &mut [f32]) + Sync)) -> Matrix {
    let copy = CopiedRows::copy(pool, rows, cols * 4, &|row, out| {
        let mut values = vec![0.0f32; cols];
        fill(row, &mut values);
        out.chunks_exact_mut(4).zip(&values).for_each(|(out, x)| out.copy_from_slice(&x.to_le_bytes()));
    });
    Matrix::encoded(pool, rows, cols, Encoding::F32, Box::new(copy))
}
