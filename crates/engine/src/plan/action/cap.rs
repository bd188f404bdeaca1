//! `cap`: clamps the component along a direction: `h + (clamp(h·v) − h·v)v`. It has no gradient.

use super::operand::{read_form, read_operand, unit_vector, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use pellucid_kernels::elementwise::dot;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    vector: Value,
    min: Option<f32>,
    max: Option<f32>,
}

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let form: Form = read_form("cap", value)?;
    if form.min.is_none() && form.max.is_none() {
        return Err("`cap` needs `min`, `max` or both".into());
    }
    Ok(Action::Cap { vector: read_operand(form.vector, names)?, min: form.min, max: form.max })
}

pub(super) fn write(
    vector: &Operand,
    min: &Option<f32>,
    max: &Option<f32>,
    to: &ActionWriter,
) -> Result<Value, String> {
    Ok(json!({ "vector": write_operand(vector, to.names), "min": min, "max": max }))
}

pub(super) fn compile(
    vector: &Operand,
    min: &Option<f32>,
    max: &Option<f32>,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    let (min, max) = (min.unwrap_or(f32::NEG_INFINITY), max.unwrap_or(f32::INFINITY));
    if min > max || min.is_nan() || max.is_nan() {
        return Err(format!("`cap` has min {min} above max {max}"));
    }
    Ok(CompiledAction::Edit(Edit::Cap(unit_vector(vector, target.edge, target.columns)?, min, max)))
}

pub(super) fn apply(picked: &mut [f32], direction: &[f32], min: f32, max: f32) {
    // A direction of a head's width applies to each head.
    for part in picked.chunks_exact_mut(direction.len()) {
        let along = dot(part, direction);
        let change = along.clamp(min, max) - along;
        part.iter_mut().zip(direction).for_each(|(x, v)| *x += change * v);
    }
}
