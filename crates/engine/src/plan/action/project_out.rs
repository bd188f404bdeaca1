//! `project_out`: scales the component along a direction, with `s = 0` by default:
//! `h + (s − 1)(h·v)v`.

use super::operand::{read_scaled_vector, unit_vector, write_scaled_vector};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use pellucid_kernels::elementwise::dot;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let (vector, scale) = read_scaled_vector("project_out", value, Some(0.0), names)?;
    Ok(Action::ProjectOut { vector, scale })
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
    Ok(CompiledAction::Edit(Edit::ProjectOut(unit_vector(vector, target.edge, target.columns)?, *scale)))
}

pub(super) fn apply(picked: &mut [f32], direction: &[f32], scale: f32) {
    // A direction of a head's width applies to each head.
    for part in picked.chunks_exact_mut(direction.len()) {
        let along = (scale - 1.0) * dot(part, direction);
        part.iter_mut().zip(direction).for_each(|(x, v)| *x += along * v);
    }
}

/// The map is linear and symmetric, so its backward pass is the same formula.
pub(super) fn backward(gradient: &mut [f32], direction: &[f32], scale: f32) {
    apply(gradient, direction, scale);
}
