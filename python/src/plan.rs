//! Converts a recorded trace to an engine plan.
//!
//! Python passes the whole recording in one call:
//!
//! - A tap is a `Site` that is captured whole, or a tuple `(order, metric, action, site, selection,
//!   operand, …)`. Taps apply by ascending `order` (the sequence number of the access). With a
//!   metric, the action applies to that metric's gradient at the site.
//! - A selection is `(rows, positions, steps, heads, units, keys)`, with `experts` as a seventh
//!   element if it has them, or `None` for everything.
//! - An operand is a float or the index of a value. A capture has in this slot the `Value` that
//!   receives the result, if there is one, followed by `"sparse"` if it is sparse.

use crate::errors::{ErrorKind, error};
use crate::expression::expression;
use crate::tracing::{TraceSite, TraceValue, on_gradient};
use pellucid_engine::plan::{Value, ValueId};
use pellucid_engine::{self as engine, Action, Operand, Positions, Reduce, Tap};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyList, PySlice, PyString, PyTuple};

/// A plan: the activations to capture and to edit in a run.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Plan {
    pub inner: engine::Plan,
    /// For each recorded tap, its index in `inner.taps`.
    pub tap_indices: Vec<usize>,
    /// The values that the trace saves.
    pub saves: Vec<Save>,
}

/// A saved value: its source in the run, and the Python object that receives it.
pub struct Save {
    pub source: SaveSource,
    pub value: Py<TraceValue>,
}

/// Source of a saved value in a run's results.
#[derive(Clone, Copy)]
pub enum SaveSource {
    /// A value of the plan.
    Value(ValueId),
    /// The capture of the tap with this index in the plan.
    Capture(usize),
}

#[pymethods]
impl Plan {
    /// Parses a plan from JSON.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Plan> {
        let inner = engine::Plan::from_json(text).map_err(|problem| {
            error(py, ErrorKind::Plan, &problem, Some("docs/plans.md documents the format of plans"))
        })?;
        let tap_indices = (0..inner.taps.len()).collect();
        Ok(Plan { inner, tap_indices, saves: Vec::new() })
    }

    /// Builds a plan from a recorded trace. `saves` are pairs of a `Value` and its index in
    /// `values`; captured sites are saved too.
    #[staticmethod]
    fn from_record(
        taps: &Bound<'_, PyList>,
        values: &Bound<'_, PyList>,
        saves: Vec<(Py<TraceValue>, usize)>,
        metrics: Vec<usize>,
        allow_nan: bool,
    ) -> PyResult<Plan> {
        let mut recorded = Vec::with_capacity(taps.len());
        let mut captured = Vec::with_capacity(taps.len());
        for (index, item) in taps.iter().enumerate() {
            let (order, tap) = match item.cast_into::<TraceSite>() {
                Ok(site) => {
                    let tap = TraceSite::capture_tap(&site)?;
                    captured.push((index, site.into_super().unbind()));
                    tap
                }
                Err(item) => {
                    let tuple = item.into_inner().cast_into::<PyTuple>()?;
                    let tap = parse_tap(&tuple)?;
                    if tap.action.captures() && tuple.len() > 5 {
                        captured.push((index, tuple.get_item(5)?.extract()?));
                    }
                    (tuple.get_item(0)?.extract::<usize>()?, tap)
                }
            };
            recorded.push((order, index, tap));
        }
        // Gradient taps have the order of the write that produced the value they differentiate, and
        // follow it. The backward pass visits the taps of a site in reverse, so gradient taps with
        // the same order are listed in reverse: they then apply in the order they were recorded.
        recorded.sort_by_key(|(order, index, tap)| match tap.action {
            Action::Grad { .. } => (*order, true, usize::MAX - index),
            _ => (*order, false, *index),
        });
        let mut tap_indices = vec![0; recorded.len()];
        recorded.iter().enumerate().for_each(|(position, (_, index, _))| tap_indices[*index] = position);
        let values = values.iter().map(|tuple| {
            let expr = expression(tuple.cast::<PyTuple>()?, &tap_indices)?;
            Ok(Value { name: None, expr })
        });
        let mut save: Vec<ValueId> = saves.iter().map(|(_, id)| ValueId::new(*id)).collect();
        save.sort_unstable();
        save.dedup();
        let captured =
            captured.into_iter().map(|(tap, value)| Save { source: SaveSource::Capture(tap_indices[tap]), value });
        let saves = saves.into_iter().map(|(value, id)| Save { source: SaveSource::Value(ValueId::new(id)), value });
        let saves = captured.chain(saves).collect();
        let inner = engine::Plan {
            values: values.collect::<PyResult<_>>()?,
            taps: recorded.into_iter().map(|(.., tap)| tap).collect(),
            save,
            metrics: metrics.into_iter().map(ValueId::new).collect(),
            allow_nan,
            saes: Vec::new(),
        };
        Ok(Plan { inner, tap_indices, saves })
    }

    /// Number of saved values, without the captures of patterns.
    #[getter]
    fn saves(&self) -> usize {
        self.saves.len()
    }

    /// Serializes the plan to JSON; fails if it calls Python functions.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let hint = "a plan that calls Python functions has no JSON form";
        self.inner.to_json().map_err(|problem| error(py, ErrorKind::Plan, &problem, Some(hint)))
    }

    fn __repr__(&self) -> String {
        let engine::Plan { taps, values, .. } = &self.inner;
        format!("Plan of {} taps and {} values", taps.len(), values.len())
    }
}

fn parse_tap(recorded: &Bound<'_, PyTuple>) -> PyResult<Tap> {
    let item = |at: usize| recorded.get_item(at);
    let operand = || parse_operand(&item(5)?);
    let name = item(2)?.cast_into::<PyString>()?;
    let action = match name.to_str()? {
        // A sparse capture has its reduction after the `Value`.
        "capture" => Action::Capture((recorded.len() > 6).then_some(Reduce::Sparse)),
        "read" => Action::Read,
        "set" => Action::Set(operand()?),
        "add" => Action::Add { operand: operand()?, scale: item(6)?.extract()? },
        "scale" => Action::Scale(item(5)?.extract()?),
        "replace" => Action::Replace(item(5)?.extract()?),
        "skip" if item(5)?.is_none() => Action::Skip(None),
        "skip" => Action::Skip(Some(operand()?)),
        other => return Err(unknown("action", other)),
    };
    let mut tap = Tap::new(item(3)?.cast_into::<PyString>()?.to_str()?, on_gradient(action, item(1)?.extract()?));
    let selection = item(4)?;
    if !selection.is_none() {
        let selection = selection.cast::<PyTuple>()?;
        tap.rows = selection.get_item(0)?.extract()?;
        tap.positions = parse_positions(&selection.get_item(1)?)?.unwrap_or_default();
        tap.steps = parse_positions(&selection.get_item(2)?)?;
        tap.heads = selection.get_item(3)?.extract()?;
        tap.units = selection.get_item(4)?.extract()?;
        tap.keys = parse_positions(&selection.get_item(5)?)?;
        tap.experts = selection.get_item(6).ok().map(|experts| experts.extract()).transpose()?;
    }
    Ok(tap)
}

/// Parses positions: `None` (all), a slice, a list of indices, or a word such as `last`.
fn parse_positions(object: &Bound<'_, PyAny>) -> PyResult<Option<Positions>> {
    if object.is_none() {
        return Ok(None);
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Some(Positions::parse(text.to_str()?)));
    }
    if let Ok(slice) = object.cast::<PySlice>() {
        let (start, end) = (slice.getattr("start")?.extract()?, slice.getattr("stop")?.extract()?);
        let step = slice.getattr("step")?.extract::<Option<usize>>()?.unwrap_or(1);
        return Ok(Some(Positions::Slice { start, end, step }));
    }
    Ok(Some(Positions::List(object.extract()?)))
}

fn parse_operand(object: &Bound<'_, PyAny>) -> PyResult<Operand> {
    if object.is_instance_of::<PyFloat>() {
        Ok(Operand::Number(object.extract()?))
    } else {
        Ok(Operand::Value(ValueId::new(object.extract()?)))
    }
}

/// Error for a recorded tuple that this module does not know: Python and Rust are out of step.
pub fn unknown(what: &str, name: &str) -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err(format!("unknown {what} {name:?} in a recorded trace"))
}
