//! Converts recorded values to plan expressions.
//!
//! A recorded value is a tuple: the kind of operation, the indices of its operands, and its
//! parameters. `pellucid/values.py` and `views.py` record them.

use crate::array::{Array, to_engine};
use crate::errors::raised;
use crate::plan::unknown;
use pellucid_engine as engine;
use pellucid_engine::plan::{Across, Combine, Expr, Fold, Function, Map, Pick, ValueId};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyEllipsis, PyFloat, PyInt, PySlice, PyString, PyTuple};
use std::sync::Arc;

/// Converts a recorded value. `tap_indices` maps recorded taps to their index in the plan.
pub fn expression(recorded: &Bound<'_, PyTuple>, tap_indices: &[usize]) -> PyResult<Expr> {
    let item = |at: usize| recorded.get_item(at);
    let number = |at: usize| item(at)?.extract::<usize>();
    let id = |at: usize| number(at).map(ValueId::new);
    let ids = |at: usize| Ok::<_, PyErr>(item(at)?.extract::<Vec<usize>>()?.into_iter().map(ValueId::new).collect());
    let name = |at: usize| Ok::<_, PyErr>(item(at)?.cast_into::<PyString>()?);
    let kind = name(0)?;
    Ok(match kind.to_str()? {
        "read" => Expr::Read(tap_indices[number(1)?]),
        "constant" => Expr::Constant(constant(&item(1)?)?),
        "map" => Expr::Map(lookup("function", &name(1)?, Map::named)?, id(2)?),
        "combine" => Expr::Combine(lookup("function", &name(1)?, Combine::named)?, id(2)?, id(3)?),
        "where" => Expr::Where(id(1)?, id(2)?, id(3)?),
        "matmul" => Expr::MatMul(id(1)?, id(2)?),
        "fold" => Expr::Fold {
            how: lookup("reduction", &name(1)?, Fold::named)?,
            of: id(2)?,
            axis: item(3)?.extract()?,
            keep: item(4)?.extract()?,
        },
        "softmax" => Expr::Softmax { of: id(1)?, axis: item(2)?.extract()?, log: item(3)?.extract()? },
        "topk" => Expr::TopK { of: id(1)?, k: number(2)?, indices: item(3)?.extract()? },
        "index" => Expr::Index { of: id(1)?, picks: picks(&item(2)?)? },
        "put" => Expr::Put { of: id(1)?, picks: picks(&item(2)?)?, by: id(3)? },
        "take" => Expr::Take { of: id(1)?, indices: id(2)? },
        "reshape" => Expr::Reshape { of: id(1)?, shape: item(2)?.extract()? },
        "permute" => Expr::Permute { of: id(1)?, axes: item(2)?.extract()? },
        "concat" => Expr::Concat { parts: ids(1)?, axis: item(2)?.extract()? },
        "across" => Expr::Across { how: lookup("row join", &name(1)?, Across::named)?, of: id(2)? },
        "row" => Expr::Row { of: id(1)?, row: number(2)? },
        "through" => Expr::Through { of: id(1)?, from: item(2)?.extract()?, to: item(3)?.extract()? },
        "weight_grad" => Expr::WeightGrad { metric: number(1)?, weight: item(2)?.extract()? },
        "unembed" => Expr::Unembed(id(1)?),
        "call" => Expr::Call { function: python_function(item(1)?.unbind()), of: ids(2)? },
        other => return Err(unknown("value", other)),
    })
}

fn lookup<T>(what: &str, name: &Bound<'_, PyString>, named: impl Fn(&str) -> Option<T>) -> PyResult<T> {
    let name = name.to_str()?;
    named(name).ok_or_else(|| unknown(what, name))
}

fn constant(object: &Bound<'_, PyAny>) -> PyResult<engine::Array> {
    if object.is_instance_of::<PyFloat>() || object.is_instance_of::<PyInt>() {
        return Ok(engine::Array::new(Vec::new(), vec![object.extract()?]));
    }
    to_engine(object)
}

fn picks(object: &Bound<'_, PyAny>) -> PyResult<Vec<Pick>> {
    object.cast::<PyTuple>()?.iter().map(|pick| one_pick(&pick)).collect()
}

fn one_pick(object: &Bound<'_, PyAny>) -> PyResult<Pick> {
    if object.is_none() {
        return Ok(Pick::New);
    }
    if object.is_instance_of::<PyEllipsis>() {
        return Ok(Pick::Rest);
    }
    if let Ok(slice) = object.cast::<PySlice>() {
        let bound = |name: &str| slice.getattr(name)?.extract::<Option<i64>>();
        return Ok(Pick::Slice(bound("start")?, bound("stop")?, bound("step")?.unwrap_or(1)));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Pick::At(object.extract()?));
    }
    Ok(Pick::Each(object.extract()?))
}

/// Wraps a Python function of numpy arrays. An exception it raises is stored and re-raised after
/// the run.
fn python_function(function: Py<PyAny>) -> Function {
    Function(Arc::new(move |arrays: &[engine::Array]| {
        Python::attach(|py| {
            call_python(py, &function, arrays).map_err(|exception| {
                let message = exception.to_string();
                raised::store(exception);
                message
            })
        })
    }))
}

fn call_python(py: Python<'_>, function: &Py<PyAny>, arrays: &[engine::Array]) -> PyResult<engine::Array> {
    static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let arrays = arrays.iter().map(|array| Array::numpy(Bound::new(py, Array(array.clone()))?));
    let arguments = PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?)?;
    let result = function.bind(py).call1(arguments)?;
    let as_array = AS_ARRAY.import(py, "pellucid.convert", "array")?;
    to_engine(&as_array.call1((result,))?)
}
