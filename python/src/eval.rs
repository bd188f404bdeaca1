//! Evaluation on tasks. `pellucid/evaluation.py` has the class of its results.

use crate::errors::{ErrorKind, error, from_models, raised};
use crate::model::Model;
use crate::plan::Plan;
use crate::run::{concat_edits, run_engine, signal_interrupt};
use pellucid_analysis::eval::{EvalOptions, Fewshot, Task, TaskOptions, Variant, eval_text, evaluate};
use pellucid_models::attach::check_saes;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;

/// How a task is read: `(limit, number of examples, file of examples, seed of their choice)`.
type ReadOptions = (Option<usize>, Option<usize>, Option<PathBuf>, u64);

/// A task that was read.
#[pyclass(frozen, module = "pellucid._core")]
pub struct EvalTask(Task);

#[pymethods]
impl EvalTask {
    /// Reads a task file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf, options: ReadOptions) -> PyResult<EvalTask> {
        Task::read(&path, &task_options(options)).map(EvalTask).map_err(|fault| from_models(py, &fault))
    }

    /// Makes a task of items, a JSON list of objects in the form of JSONL lines.
    #[staticmethod]
    fn from_items(py: Python<'_>, items: &str, options: ReadOptions) -> PyResult<EvalTask> {
        let docs: Vec<_> = serde_json::from_str(items)
            .map_err(|fault| error(py, ErrorKind::Input, &format!("items: {fault}"), Some("give a list of dicts")))?;
        let docs = docs.into_iter().enumerate().map(|(index, doc)| (index + 1, doc)).collect();
        let task = Task::from_documents("items".into(), "items", docs, &task_options(options));
        task.map(EvalTask).map_err(|fault| from_models(py, &fault))
    }
}

fn task_options((limit, count, file, seed): ReadOptions) -> TaskOptions {
    TaskOptions { limit, fewshot: Fewshot { count, file, seed } }
}

/// Evaluates a task for the model with its standing edits and under variants, `(name, plan,
/// directory of its files)`. Returns the evaluation as JSON and as text.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per Python argument
pub fn evaluate_task(
    py: Python<'_>,
    model: &Model,
    task: &EvalTask,
    edits: &Bound<'_, PyTuple>,
    variants: Vec<(String, Bound<'_, Plan>, PathBuf)>,
    no_prefix: bool,
    seed: u64,
    watch: Option<Py<PyAny>>,
) -> PyResult<(String, String)> {
    let (loaded, edits) = (model.loaded(py)?, concat_edits(edits)?);
    let mut all = vec![Variant { plan: edits.clone(), ..Variant::clean() }];
    for (name, plan, directory) in variants {
        let plan = plan.get().inner.clone();
        check_saes(&model.saes(), &plan, &directory).map_err(|fault| from_models(py, &fault))?;
        all.push(Variant { name, plan: edits.clone().then(plan), directory });
    }
    let options = EvalOptions { seed, no_prefix, interrupt: Some(signal_interrupt()) };
    let mut progress = |done: f32| {
        if let Some(watch) = &watch {
            Python::attach(|py| raised::store_error(watch.call1(py, ("progress", done))));
        }
    };
    let evaluation = run_engine(py, || evaluate(loaded, &task.0, &all, &options, &mut progress))?;
    let json = serde_json::to_string(&evaluation);
    let json = json.map_err(|fault| pyo3::exceptions::PyRuntimeError::new_err(fault.to_string()))?;
    Ok((json, eval_text(&evaluation)))
}
