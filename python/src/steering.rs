//! Steering vectors: files, checks and extraction. `pellucid/steering.py` is the class around it.

use crate::array::{Array, to_engine};
use crate::errors::{ErrorKind, error, from_models, guarded};
use crate::model::Model;
use crate::run::{extract_rows, run_engine, signal_interrupt};
use pellucid_analysis::steer::{ExtractOptions, Method, extract};
use pellucid_models::steer::{SteeringInfo, SteeringVectors, layer_point};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::path::{Path, PathBuf};

/// `(point, (layer, direction) of each layer, metadata as JSON)`.
type VectorsTuple = (&'static str, Vec<(usize, Array)>, String);

fn to_tuple(vectors: &SteeringVectors) -> VectorsTuple {
    let array = |direction: &Vec<f32>| Array(pellucid_engine::Array::new(vec![direction.len()], direction.clone()));
    let directions = vectors.directions().iter().map(|(&layer, direction)| (layer, array(direction)));
    (vectors.point().info().name, directions.collect(), vectors.info.to_json())
}

fn from_tuple(
    py: Python<'_>,
    point: &str,
    directions: Vec<(usize, Bound<'_, PyAny>)>,
    info: &str,
) -> PyResult<SteeringVectors> {
    let directions = directions.iter().map(|(layer, array)| Ok((*layer, to_engine(array)?.values().to_vec())));
    let directions = directions.collect::<PyResult<_>>()?;
    let vectors = || {
        let info = SteeringInfo::parse(info, Path::new("SteeringVectors.info"))?;
        SteeringVectors::new(layer_point(point)?, directions, info)
    };
    vectors().map_err(|fault| from_models(py, &fault))
}

/// Reads a safetensors file or a GGUF control vector.
#[pyfunction]
pub fn read_steering(py: Python<'_>, path: PathBuf) -> PyResult<VectorsTuple> {
    let vectors = guarded(py, || SteeringVectors::open(&path))?.map_err(|fault| from_models(py, &fault))?;
    Ok(to_tuple(&vectors))
}

/// The bytes of a file in the format of the path's extension.
#[pyfunction]
pub fn steering_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    point: &str,
    directions: Vec<(usize, Bound<'py, PyAny>)>,
    info: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let vectors = from_tuple(py, point, directions, info)?;
    let bytes = vectors.to_file(&path).map_err(|fault| from_models(py, &fault))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Checks that vectors fit a model; returns a warning if they were made for another one.
#[pyfunction]
pub fn check_steering(
    py: Python<'_>,
    model: &Model,
    point: &str,
    directions: Vec<(usize, Bound<'_, PyAny>)>,
    info: &str,
) -> PyResult<Option<String>> {
    let vectors = from_tuple(py, point, directions, info)?;
    vectors.check(model.program()).map_err(|fault| from_models(py, &fault))?;
    Ok(vectors.warning(model.parts(py)?))
}

/// Extracts vectors from rows that alternate: positive, negative. Returns them with the
/// measurements of each layer as JSON.
#[pyfunction]
pub fn extract_steering(
    py: Python<'_>,
    model: &Model,
    rows: &Bound<'_, PyList>,
    method: &str,
    layers: Option<Vec<usize>>,
    positions: String,
    point: &str,
) -> PyResult<(VectorsTuple, String)> {
    let method = Method::from_name(method).ok_or_else(|| {
        let names = Method::ALL.map(Method::name).join(", ");
        error(py, ErrorKind::Input, &format!("unknown method {method:?}"), Some(&format!("use one of {names}")))
    })?;
    let point = layer_point(point).map_err(|fault| from_models(py, &fault))?;
    let (loaded, rows) = (model.loaded(py)?, extract_rows(py, rows)?);
    let (pairs, _) = rows.as_chunks::<2>();
    let layers = layers.map(|layers| layers.into_iter().collect());
    let options = ExtractOptions { method, layers, positions, point, interrupt: Some(signal_interrupt()) };
    let found = run_engine(py, || extract(loaded, pairs, &options, &mut |_| {}))?;
    let quality = serde_json::to_string(&found.layers);
    let quality = quality.map_err(|fault| pyo3::exceptions::PyRuntimeError::new_err(fault.to_string()))?;
    Ok((to_tuple(&found.vectors), quality))
}
