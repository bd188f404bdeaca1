//! `orthogonal`: removes the component along a direction and adds the scaled vector:
//! `h − (h·u)u + sv` with `u = v/‖v‖`. With `s = 1` it equals `ablation_then_addition` of the
//! package steering-vectors.

use super::operand::{direction_vector, normalize, read_scaled_vector, write_scaled_vector};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand, cap, project_out};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let (vector, scale) = read_scaled_vector("orthogonal", value, Some(1.0), names)?;
    Ok(Action::Orthogonal { vector, scale })
}

pub(super) fn write(vector: &Operand, scale: &f32, to: &ActionWriter) -> Result<Value, String> {
    Ok(write_scaled_vector(vector, *scale, to.names))
}

pub(super) fn compile(
    vector: &Operand,
    scale: &f32,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    // The component becomes both bounds of a clamp, which panics on NaN.
    if !scale.is_finite() {
        return Err(format!("`orthogonal` has scale {scale}"));
    }
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
