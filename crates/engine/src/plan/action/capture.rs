//! `capture`: returns what a tap selects, whole or reduced.

use super::operand::{plain_vector, read_form, read_operand, write_operand};
use super::{Action, CompiledAction, Operand, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::{Names, Written};
use serde::Deserialize;
use serde_json::{Value, json};

/// How a captured value is reduced before it is returned.
#[derive(Clone, Debug, PartialEq)]
pub enum Reduce {
    /// The mean over the selected positions.
    Mean,
    /// The length of each position's vector.
    Norm,
    /// The largest values of each position, with their units.
    TopK(usize),
    /// The inner product of each position with a vector.
    Dot(Operand),
}

/// A reduction, checked; `Whole` is none.
pub(crate) enum CompiledReduce {
    Whole,
    Mean,
    Norm,
    TopK(usize),
    Dot(Vec<f32>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    reduce: ReduceForm,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReduceForm {
    Mean,
    Norm,
    Topk(usize),
    Dot(Value),
}

impl ReduceForm {
    fn read(self, names: &Names) -> Result<Reduce, String> {
        Ok(match self {
            ReduceForm::Mean => Reduce::Mean,
            ReduceForm::Norm => Reduce::Norm,
            ReduceForm::Topk(k) => Reduce::TopK(k),
            ReduceForm::Dot(vector) => Reduce::Dot(read_operand(vector, names)?),
        })
    }
}

fn write_reduce(reduce: &Reduce, names: &Written) -> Value {
    match reduce {
        Reduce::Mean => json!("mean"),
        Reduce::Norm => json!("norm"),
        Reduce::TopK(k) => json!({ "topk": k }),
        Reduce::Dot(vector) => json!({ "dot": write_operand(vector, names) }),
    }
}

pub(super) fn read(value: Value, names: &Names) -> Result<Action, String> {
    match &value {
        Value::Bool(true) => Ok(Action::Capture(None)),
        Value::Object(_) => {
            let form: Form = read_form("capture", value)?;
            Ok(Action::Capture(Some(form.reduce.read(names)?)))
        }
        _ => Err("`capture` takes true or {\"reduce\": …}".into()),
    }
}

pub(super) fn write(reduce: &Option<Reduce>, to: &Writer) -> Result<Value, String> {
    Ok(match reduce {
        None => json!(true),
        Some(reduce) => json!({ "reduce": write_reduce(reduce, to.names) }),
    })
}

pub(super) fn compile(reduce: &Option<Reduce>, _: &mut Compiler, place: Place) -> Result<CompiledAction, String> {
    let columns = place.columns.len();
    if reduce.is_some() && place.on_attention() {
        return Err("attention sites take capture without reduce".into());
    }
    if reduce.is_some() && place.edge.integer {
        return Err("a choice of experts can be captured whole, not reduced".into());
    }
    Ok(CompiledAction::Capture(match reduce {
        None => CompiledReduce::Whole,
        Some(Reduce::Mean) => CompiledReduce::Mean,
        Some(Reduce::Norm) => CompiledReduce::Norm,
        Some(Reduce::TopK(k)) if *k >= 1 && *k <= columns => CompiledReduce::TopK(*k),
        Some(Reduce::TopK(k)) => return Err(format!("topk of {k} among {columns} units")),
        Some(Reduce::Dot(vector)) => CompiledReduce::Dot(plain_vector(vector, columns)?),
    }))
}
