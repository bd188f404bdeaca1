//! Arrays between Python and the engine.

use half::slice::HalfFloatSliceExt;
use numpy::ndarray::ArrayView;
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn};
use pellucid_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// An immutable f32 array of a run. Shares the engine's buffer and keeps it alive.
#[pyclass(frozen, module = "pellucid._core")]
#[derive(Clone)]
pub struct Array(pub engine::Array);

#[pymethods]
impl Array {
    /// The shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// Whether the elements are indices (argmax, top-k), stored as f32.
    #[getter]
    fn is_integer(&self) -> bool {
        self.0.is_integer()
    }

    /// Returns a read-only numpy view that keeps this array alive.
    pub fn numpy<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
        let array = &slf.get().0;
        let view = ArrayView::from_shape(array.shape(), array.values())
            .map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
        // SAFETY: `slf` owns the buffer, never moves or mutates it, and stays alive as the base
        // object of the numpy view; the view is made read-only before it is returned.
        let array = unsafe { PyArrayDyn::borrow_from_array(&view, slf.clone().into_any()) };
        drop(array.try_readwrite()?.make_nonwriteable());
        Ok(array)
    }

    /// The elements of a bf16 array as they are stored, a read-only view of type uint16; `None` for
    /// f32.
    fn bf16_bits<'py>(slf: Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyArrayDyn<u16>>>> {
        let array = &slf.get().0;
        let Some(halves) = array.halves() else { return Ok(None) };
        let view = ArrayView::from_shape(array.shape(), halves.reinterpret_cast())
            .map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
        // SAFETY: as in `numpy`.
        let bits = unsafe { PyArrayDyn::borrow_from_array(&view, slf.clone().into_any()) };
        drop(bits.try_readwrite()?.make_nonwriteable());
        Ok(Some(bits))
    }

    fn __repr__(&self) -> String {
        format!("Array{:?}", self.0.shape())
    }
}

/// Converts a Python object to an engine array: shares the buffer of an `Array`, copies a numpy f32
/// array.
pub fn to_engine(object: &Bound<'_, PyAny>) -> PyResult<engine::Array> {
    if let Ok(array) = object.cast::<Array>() {
        return Ok(array.get().0.clone());
    }
    let array: PyReadonlyArrayDyn<'_, f32> = object.extract()?;
    let view = array.as_array();
    Ok(engine::Array::new(view.shape().to_vec(), view.iter().copied().collect()))
}
