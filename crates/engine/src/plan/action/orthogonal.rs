//! `orthogonal`: removes the component along a direction and adds the scaled vector:
//! `h − (h·u)u + sv` with `u = v/‖v‖`. With `s = 1` it equals `ablation_then_addition` of the
//! package steering-vectors.

use super::operand::{direction_vector, normalize, read_form, read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand, cap, project_out};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    vector: Value,
    scale: Option<f32>,
}

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let form: Form = read_form("orthogonal", value)?;
    Ok(Action::Orthogonal { vector: read_operand(form.vector, names)?, scale: form.scale.unwrap_or(1.0) })
}

pub(super) fn write(vector: &Operand, scale: &f32, to: &ActionWriter) -> Result<Value, String> {
    Ok(json!({ "vector": write_operand(vector, to.names), "scale": scale }))
}

pub(super) fn compile(
    vector: &Operand,
    scale: &f32,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    let (direction, length) = normalize(&direction_vector(vector, target.edge, target.columns)?);
    Ok(CompiledAction::Edit(Edit::Orthogonal(direction, scale * length)))
}

/// Sets the component along the unit vector `direction` to `component`, which is `s‖v‖`.
pub(super) fn apply(picked: &mut [f32], direction: &[f32], component: f32) {
    cap::apply(picked, direction, component, component);
}

/// The output's component along the direction is constant: its gradient is removed.
pub(super) fn backward(gradient: &mut [f32], direction: &[f32]) {
    project_out::backward(gradient, direction, 0.0);
}
