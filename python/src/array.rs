//! Arrays in both directions.

use numpy::ndarray::ArrayView;
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pellucid_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A value of a run: immutable numbers that share the engine's memory and keep it alive.
#[pyclass(frozen, module = "pellucid._core")]
#[derive(Clone)]
pub struct Array(pub engine::Array);

#[pymethods]
impl Array {
    /// The lengths of its axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// Whether its numbers are indices.
    #[getter]
    fn is_integer(&self) -> bool {
        self.0.is_integer()
    }

    /// A read-only view in numpy; it keeps this array alive.
    pub fn numpy<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let array = &slf.get().0;
        let view = ArrayView::from_shape(array.shape(), array.values())
            .map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
        // SAFETY: the owner is `slf`, which numpy keeps as the view's base and which never moves or changes its numbers; the view is
        // made read-only before anyone sees it.
        let array = unsafe { PyArrayDyn::borrow_from_array(&view, slf.clone().into_any()) };
        drop(array.try_readwrite()?.make_nonwriteable());
        Ok(array)
    }

    fn __repr__(&self) -> String {
        format!("Array{:?}", self.0.shape())
    }
}

/// The engine's array behind a Python object: the same memory for our own, a copy for numpy's f32.
pub fn to_engine(object: &Bound<'_, PyAny>) -> PyResult<engine::Array> {
    if let Ok(own) = object.cast::<Array>() {
        return Ok(own.get().0.clone());
    }
    let numbers: PyReadonlyArrayDyn<'_, f32> = object.extract()?;
    let view = numbers.as_array();
    Ok(engine::Array::new(view.shape().to_vec(), view.iter().copied().collect()))
}
