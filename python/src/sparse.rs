//! Sparse captures as Python objects.

use crate::array::Array;
use numpy::PyArray1;
use pellucid_engine as engine;
use pyo3::prelude::*;
use std::sync::Arc;

/// A sparse capture of a run in CSR form. `pellucid/sparse.py` is the class around it.
#[pyclass(frozen, module = "pellucid._core")]
#[derive(Clone)]
pub struct SparseArray {
    values: engine::Array,
    rows: Arc<engine::SparseRows>,
}

impl SparseArray {
    /// The sparse form of a capture, if it has one.
    pub fn of(capture: &engine::Capture) -> Option<SparseArray> {
        Some(SparseArray { values: capture.array.clone(), rows: capture.sparse.clone()? })
    }
}

#[pymethods]
impl SparseArray {
    /// The shape of the dense array.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        let [positions, units] = self.rows.shape();
        (positions, units)
    }

    /// The nonzero elements.
    #[getter]
    fn values(&self) -> Array {
        Array(self.values.clone())
    }

    /// The column of each element, a copy.
    fn indices<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(py, self.rows.indices.iter().map(|&index| i64::from(index)))
    }

    /// The offset of each row's elements, a copy.
    fn indptr<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_iter(py, self.rows.indptr.iter().map(|&offset| offset as i64))
    }

    fn __repr__(&self) -> String {
        format!("SparseArray{:?}", self.rows.shape())
    }
}
