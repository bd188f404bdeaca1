//! Inspection of a directory or file: reports, as JSON for `inspection.py`, and single queries, for
//! the former API in `identify.py`.

use crate::errors::{from_models, guarded};
use crate::hints;
use pellucid_models::{families, inspect, inspect_as};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Inspects a path, quickly without its headers; returns the report as JSON and as human-readable
/// text.
#[pyfunction]
pub fn inspect_path(py: Python<'_>, path: PathBuf, assume: Option<String>, quick: bool) -> PyResult<(String, String)> {
    let read = || if quick { inspect::inspect_quickly(&path) } else { inspect_as(&path, assume.as_deref()) };
    let mut report = guarded(py, read)?.map_err(|fault| from_models(py, &fault))?;
    report.word_remedies(&hints::word);
    Ok((json(&report)?, report.card_with(&hints::word)))
}

/// The JSON schema of reports.
#[pyfunction]
pub fn inspect_schema() -> PyResult<String> {
    json(&inspect::schema())
}

/// Runs one query of `pellucid.identify` on a path; returns the answer as JSON.
#[pyfunction]
pub fn identify_path(py: Python<'_>, query: &str, path: PathBuf) -> PyResult<String> {
    let answer = || match query {
        "get_model_info" => json(&inspect::get_model_info(&path)),
        "is_model_supported" => json(&inspect::is_model_supported(&path)),
        "is_omni_model" => json(&inspect::is_omni_model(&path)),
        "detect_model_category" => json(&inspect::detect_model_category(&path)),
        "is_sae_model" => json(&inspect::is_sae_model(&path)),
        "get_sae_base_model" => json(&inspect::get_sae_base_model(&path)),
        "is_diffusers_model" => json(&inspect::is_diffusers_model(&path)),
        "is_vision_encoder" => json(&inspect::is_vision_encoder(&path)),
        "is_asr_model" => json(&inspect::is_asr_model(&path)),
        other => Err(PyRuntimeError::new_err(format!("unknown query `{other}`"))),
    };
    guarded(py, answer)?
}

/// Registers a model type as a variant of a native family.
#[pyfunction]
pub fn register_architecture(py: Python<'_>, model_type: &str, family: &str) -> PyResult<()> {
    families::register_architecture(model_type, family).map_err(|fault| from_models(py, &fault))
}

/// Registers every model type of a TOML file.
#[pyfunction]
pub fn register_file(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    families::register_file(&path).map_err(|fault| from_models(py, &fault))
}

/// All model types that load as a native family, with the family.
#[pyfunction]
pub fn registered_architectures() -> Vec<(String, &'static str)> {
    families::registered_architectures()
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|fault| PyRuntimeError::new_err(fault.to_string()))
}
