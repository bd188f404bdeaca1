//! Sparse arrays: the nonzero elements of each row of a matrix.

use super::Array;
use std::ops::Range;

/// The places of the nonzero elements of a sparse capture, `[positions, units]`, in compressed
/// sparse row (CSR) form. The elements themselves are the capture's array.
///
/// ```
/// use pellucid_engine::{Array, SparseRows};
/// // [[0, 7, 0], [0, 0, 0], [5, 0, 6]]
/// let rows = SparseRows { indptr: vec![0, 1, 1, 3], indices: vec![1, 0, 2], width: 3 };
/// let dense = rows.to_dense(&[7.0, 5.0, 6.0]);
/// assert_eq!(dense, Array::new(vec![3, 3], vec![0.0, 7.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 6.0]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparseRows {
    /// Offsets of the rows: the elements of row `i` are `indptr[i]..indptr[i + 1]`.
    pub indptr: Vec<usize>,
    /// Column of each element, in ascending order within a row.
    pub indices: Vec<u32>,
    /// Number of columns.
    pub width: usize,
}

impl SparseRows {
    /// Shape of the dense matrix.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows(), self.width]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.indptr.len().saturating_sub(1)
    }

    /// The elements of one row.
    pub fn row(&self, row: usize) -> Range<usize> {
        self.indptr[row]..self.indptr[row + 1]
    }

    /// Returns the dense matrix; `values` are the elements. Panics if there are not as many values
    /// as indices.
    pub fn to_dense(&self, values: &[f32]) -> Array {
        assert_eq!(values.len(), self.indices.len(), "one value for each index");
        let mut dense = vec![0.0; self.rows() * self.width];
        for row in 0..self.rows() {
            for element in self.row(row) {
                dense[row * self.width + self.indices[element] as usize] = values[element];
            }
        }
        Array::new(self.shape().to_vec(), dense)
    }
}
