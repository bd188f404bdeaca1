//! Branches: re-runs of one prompt from the first layer and position that a plan changes.

use crate::chat::extract_chats;
use crate::model::Model;
use crate::nan::NanReport;
use crate::plan::Plan;
use crate::remote::run_remote;
use crate::results::RunResults;
use crate::run::{EditedPlan, PlanOffset, Run, concat_edits, extract_rows, run_engine, signal_interrupt};
use pellucid_client::RemoteModel;
use pellucid_engine::{self as engine, RunOptions};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use std::time::Instant;

/// A run that stores the residual streams and KV caches that branches start from.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Base(BaseState);

enum BaseState {
    Here(Box<engine::Base>),
    /// On a server, which computes the base for each call.
    Remote(Box<RemoteBase>),
}

/// A row and its standing edits.
struct RemoteBase {
    model: RemoteModel,
    tokens: Vec<u32>,
    edits: engine::Plan,
}

impl Base {
    fn run_branches(&self, plans: &[engine::Plan]) -> pellucid_client::Result<Vec<engine::Run>> {
        match &self.0 {
            BaseState::Here(base) => Ok(base.branches(plans)?),
            BaseState::Remote(base) => base.model.branches(&base.tokens, &base.edits, plans, Some(&signal_interrupt())),
        }
    }
}

/// Runs one row of tokens under standing edits and stores the state that branches need.
#[pyfunction]
pub fn base(py: Python<'_>, model: &Model, rows: &Bound<'_, PyList>, edits: &Bound<'_, PyTuple>) -> PyResult<Base> {
    let chats = extract_chats(rows);
    let (rows, edits) = (extract_rows(py, rows)?, concat_edits(edits)?);
    let none = Plan { inner: engine::Plan::default(), tap_indices: Vec::new(), saves: Vec::new() };
    if let Some(remote) = model.remote() {
        let base = run_remote(py, || {
            let edits = EditedPlan::new(&none, edits, &rows, &chats, model)?.plan.into_owned();
            remote.local().model.check_run(&rows, &edits, &RunOptions::default())?;
            let tokens = rows.first().cloned().unwrap_or_default();
            Ok(RemoteBase { model: remote.clone(), tokens, edits })
        })?;
        return Ok(Base(BaseState::Remote(Box::new(base))));
    }
    let loaded = model.loaded(py)?;
    let base = run_engine(py, || {
        let edited = EditedPlan::new(&none, edits, &rows, &chats, model)?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        Ok(loaded.model.base_with(row, &edited.plan, Some(signal_interrupt()))?)
    })?;
    Ok(Base(BaseState::Here(Box::new(base))))
}

#[pymethods]
impl Base {
    /// Runs the base's tokens under each plan, batched, recomputing only what each plan changes.
    /// The results equal those of whole runs.
    fn branches(&self, py: Python<'_>, plans: Vec<Py<Plan>>) -> PyResult<Vec<Run>> {
        let started = Instant::now();
        let inner: Vec<engine::Plan> = plans.iter().map(|plan| plan.get().inner.clone()).collect();
        let runs = run_remote(py, || self.run_branches(&inner))?;
        let time = started.elapsed() / u32::try_from(plans.len().max(1)).unwrap_or(u32::MAX);
        let each = runs.into_iter().zip(plans);
        Ok(each
            .map(|(run, plan)| {
                let nan = NanReport::of_results(&run, &plan.get().inner);
                Run { results: RunResults::from_run(run, plan, PlanOffset::default(), true), time, nan }
            })
            .collect())
    }
}
