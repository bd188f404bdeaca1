//! What a block recorded, as a plan.
//!
//! A block hands everything over at once. A tap is a site that is captured whole, or `(place, metric, action, site, selection, operand, …)`: taps
//! apply in the order of their places; with a metric the action is done to its gradient at the value that stands there. A selection is `(rows,
//! positions, steps, heads, units, keys)`, or `None` for everything. An operand is a float, or the number of a value; a capture has in its place
//! the object that is to have the result, if one is.

use crate::block::{BlockSite, BlockValue, gradient};
use crate::errors::{Kind, error};
use crate::expression::expression;
use pellucid_engine::plan::{Value, ValueId};
use pellucid_engine::{self as engine, Action, Operand, Positions, Tap};
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyList, PySlice, PyString, PyTuple};

/// What to see and what to change, ready to run.
#[pyclass(frozen, module = "pellucid._core")]
pub struct Plan {
    pub inner: engine::Plan,
    /// For each recorded tap its place in the plan.
    pub places: Vec<usize>,
    /// What the block saves.
    pub saves: Vec<Save>,
}

/// Something that comes back, and the value whose result it becomes.
pub struct Save {
    pub kept: Kept,
    pub value: Py<BlockValue>,
}

/// Where a run has something that comes back.
#[derive(Clone, Copy)]
pub enum Kept {
    /// A value of the plan.
    Value(ValueId),
    /// What a tap of the plan captures.
    Capture(usize),
}

#[pymethods]
impl Plan {
    /// Reads a plan from JSON.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Plan> {
        let inner = engine::Plan::from_json(text)
            .map_err(|problem| error(py, Kind::Plan, &problem, Some("docs/plans.md shows the form of a plan")))?;
        let places = (0..inner.taps.len()).collect();
        Ok(Plan { inner, places, saves: Vec::new() })
    }

    /// A plan of what a block recorded. What it saves are pairs of an object and the number of a value, and what taps capture.
    #[staticmethod]
    fn from_record(
        taps: &Bound<'_, PyList>,
        values: &Bound<'_, PyList>,
        saves: Vec<(Py<BlockValue>, usize)>,
        metrics: Vec<usize>,
        allow_nan: bool,
    ) -> PyResult<Plan> {
        let mut recorded = Vec::with_capacity(taps.len());
        let mut captured = Vec::with_capacity(taps.len());
        for (index, item) in taps.iter().enumerate() {
            let (place, tap) = match item.cast_into::<BlockSite>() {
                Ok(site) => {
                    let tap = BlockSite::captured(&site)?;
                    captured.push((index, site.into_super().unbind()));
                    tap
                }
                Err(item) => {
                    let tuple = item.into_inner().cast_into::<PyTuple>()?;
                    let tap = tap(&tuple)?;
                    if tap.action.captures() && tuple.len() > 5 {
                        captured.push((index, tuple.get_item(5)?.extract()?));
                    }
                    (tuple.get_item(0)?.extract::<usize>()?, tap)
                }
            };
            recorded.push((place, index, tap));
        }
        // The way back goes through a site's taps in the opposite order: so that gradients are read and changed in the order in which a
        // block says so, those of one place are listed last first, right after the write that made the value they are the gradient of.
        recorded.sort_by_key(|(place, index, tap)| match tap.action {
            Action::Grad { .. } => (*place, true, usize::MAX - index),
            _ => (*place, false, *index),
        });
        let mut places = vec![0; recorded.len()];
        recorded.iter().enumerate().for_each(|(place, (_, index, _))| places[*index] = place);
        let values = values.iter().map(|tuple| {
            let expr = expression(tuple.cast::<PyTuple>()?, &places)?;
            Ok(Value { name: None, expr })
        });
        let mut save: Vec<ValueId> = saves.iter().map(|(_, id)| ValueId::new(*id)).collect();
        save.sort_unstable();
        save.dedup();
        let captured = captured.into_iter().map(|(tap, value)| Save { kept: Kept::Capture(places[tap]), value });
        let saves = saves.into_iter().map(|(value, id)| Save { kept: Kept::Value(ValueId::new(id)), value });
        let saves = captured.chain(saves).collect();
        let inner = engine::Plan {
            values: values.collect::<PyResult<_>>()?,
            taps: recorded.into_iter().map(|(.., tap)| tap).collect(),
            save,
            metrics: metrics.into_iter().map(ValueId::new).collect(),
            allow_nan,
        };
        Ok(Plan { inner, places, saves })
    }

    /// How many things come back besides what patterns capture.
    #[getter]
    fn saves(&self) -> usize {
        self.saves.len()
    }

    /// The plan as JSON.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let hint = "keep plans with functions in Python";
        self.inner.to_json().map_err(|problem| error(py, Kind::Plan, &problem, Some(hint)))
    }

    fn __repr__(&self) -> String {
        let engine::Plan { taps, values, .. } = &self.inner;
        format!("Plan of {} taps and {} values", taps.len(), values.len())
    }
}

fn tap(recorded: &Bound<'_, PyTuple>) -> PyResult<Tap> {
    let item = |at: usize| recorded.get_item(at);
    let operand = || operand(&item(5)?);
    let name = item(2)?.cast_into::<PyString>()?;
    let action = match name.to_str()? {
        "capture" => Action::Capture(None),
        "read" => Action::Read,
        "set" => Action::Set(operand()?),
        "add" => Action::Add { operand: operand()?, scale: item(6)?.extract()? },
        "scale" => Action::Scale(item(5)?.extract()?),
        "skip" if item(5)?.is_none() => Action::Skip(None),
        "skip" => Action::Skip(Some(operand()?)),
        other => return Err(unknown("action", other)),
    };
    let mut tap = Tap::new(item(3)?.cast_into::<PyString>()?.to_str()?, gradient(action, item(1)?.extract()?));
    let selection = item(4)?;
    if !selection.is_none() {
        let selection = selection.cast::<PyTuple>()?;
        tap.rows = selection.get_item(0)?.extract()?;
        tap.positions = positions(&selection.get_item(1)?)?.unwrap_or_default();
        tap.steps = positions(&selection.get_item(2)?)?;
        tap.heads = selection.get_item(3)?.extract()?;
        tap.units = selection.get_item(4)?.extract()?;
        tap.keys = positions(&selection.get_item(5)?)?;
    }
    Ok(tap)
}

/// Positions as Python writes them: a slice, a list of numbers, a word such as `last`.
fn positions(object: &Bound<'_, PyAny>) -> PyResult<Option<Positions>> {
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

fn operand(object: &Bound<'_, PyAny>) -> PyResult<Operand> {
    if object.is_instance_of::<PyFloat>() {
        Ok(Operand::Number(object.extract()?))
    } else {
        Ok(Operand::Value(ValueId::new(object.extract()?)))
    }
}

/// The package records only what is understood here.
pub fn unknown(what: &str, name: &str) -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err(format!("a record with the unknown {what} {name:?}"))
}
