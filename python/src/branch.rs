//! Branches: re-runs of one prompt from its middle.

use crate::found::Found;
use crate::model::Model;
use crate::record::Plan;
use crate::run::{Before, Run, Whole, calling, interrupt, joined, tokens};
use pellucid_engine as engine;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::time::Instant;

/// A run that keeps what branches start from.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Base(engine::Base);

/// Runs one row of tokens under standing edits, and keeps what branches need.
#[pyfunction]
pub fn base(py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>, edits: &Bound<'_, PyTuple>) -> PyResult<Base> {
    let (loaded, rows, edits) = (model.loaded(py)?, tokens(py, rows)?, joined(edits)?);
    let none = Plan { inner: engine::Plan::default(), places: Vec::new(), saves: Vec::new() };
    let base = calling(py, || {
        let whole = Whole::new(&none, edits, &rows, model)?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        Ok(loaded.model.base_with(row, &whole.plan, Some(interrupt()))?)
    })?;
    Ok(Base(base))
}

#[pymethods]
impl Base {
    /// What runs of the base's tokens under these plans would give, computed together from where each begins to differ.
    fn branches(&self, py: Python<'_>, plans: Vec<Py<Plan>>) -> PyResult<Vec<Run>> {
        let started = Instant::now();
        let inner: Vec<engine::Plan> = plans.iter().map(|plan| plan.get().inner.clone()).collect();
        let runs = calling(py, || Ok(self.0.branches(&inner)?))?;
        let time = started.elapsed() / u32::try_from(plans.len().max(1)).unwrap_or(u32::MAX);
        let each = runs.into_iter().zip(plans);
        Ok(each.map(|(run, plan)| Run { found: Found::of_run(run, plan, Before::default(), true), time }).collect())
    }
}
