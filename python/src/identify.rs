//! What a directory or file is: reports and quick answers, as JSON that the package makes objects of.

use crate::errors::{from_models, guarded};
use pellucid_models::{families, inspect, inspect_as};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::PathBuf;

/// The report about a path: as JSON, and as a card for people.
#[pyfunction]
pub fn inspect_path(py: Python<'_>, path: PathBuf, assume: Option<String>) -> PyResult<(String, String)> {
    let report = guarded(py, || inspect_as(&path, assume.as_deref()))?.map_err(|fault| from_models(py, &fault))?;
    Ok((json(&report)?, report.card()))
}

/// The JSON schema of reports.
#[pyfunction]
pub fn inspect_schema() -> PyResult<String> {
    json(&inspect::schema())
}

/// The answer to one question about a path, as JSON.
#[pyfunction]
pub fn identify_path(py: Python<'_>, question: &str, path: PathBuf) -> PyResult<String> {
    let answer = || match question {
        "get_model_info" => json(&inspect::get_model_info(&path)),
        "is_model_supported" => json(&inspect::is_model_supported(&path)),
        "is_omni_model" => json(&inspect::is_omni_model(&path)),
        "detect_model_category" => json(&inspect::detect_model_category(&path)),
        "is_sae_model" => json(&inspect::is_sae_model(&path)),
        "get_sae_base_model" => json(&inspect::get_sae_base_model(&path)),
        "is_diffusers_model" => json(&inspect::is_diffusers_model(&path)),
        "is_vision_encoder" => json(&inspect::is_vision_encoder(&path)),
        "is_asr_model" => json(&inspect::is_asr_model(&path)),
        other => Err(PyRuntimeError::new_err(format!("there is no question `{other}`"))),
    };
    guarded(py, answer)?
}

/// Says that models of a type are of a native family.
#[pyfunction]
pub fn register_architecture(py: Python<'_>, model_type: &str, family: &str) -> PyResult<()> {
    families::register_architecture(model_type, family).map_err(|fault| from_models(py, &fault))
}

/// Registers every type of a TOML file.
#[pyfunction]
pub fn register_file(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    families::register_file(&path).map_err(|fault| from_models(py, &fault))
}

/// All types that stand for a native family.
#[pyfunction]
pub fn registered_architectures() -> Vec<(String, &'static str)> {
    families::registered_architectures()
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|fault| PyRuntimeError::new_err(fault.to_string()))
}
