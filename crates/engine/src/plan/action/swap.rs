//! `swap`: exchanges the components along two directions: `h − 2(h·w)w` with
//! `w = (u₁ − u₂)/‖u₁ − u₂‖`, `u = v/‖v‖`.
//!
//! This reflection maps `u₁` to `u₂` and `u₂` to `u₁` and keeps everything orthogonal to both, so
//! `h'·u₁ = h·u₂` and `h'·u₂ = h·u₁`, also if the two directions are not orthogonal. It keeps the
//! norm.

use super::operand::{normalize, read_form, read_operand, unit_vector, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand, project_out};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};

/// Distance of two unit vectors below which they count as the same direction.
const SAME_DIRECTION: f32 = 1e-4;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    let [first, second]: [Value; 2] =
        read_form("swap", value).map_err(|_| "`swap` must be a list of two directions".to_string())?;
    Ok(Action::Swap { first: read_operand(first, names)?, second: read_operand(second, names)? })
}

pub(super) fn write(first: &Operand, second: &Operand, to: &ActionWriter) -> Result<Value, String> {
    Ok(json!([write_operand(first, to.names), write_operand(second, to.names)]))
}

pub(super) fn compile(
    first: &Operand,
    second: &Operand,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    let first = unit_vector(first, target.edge, target.columns)?;
    let second = unit_vector(second, target.edge, target.columns)?;
    if first.len() != second.len() {
        return Err(format!("`swap` has directions of {} and {} elements", first.len(), second.len()));
    }
    let difference: Vec<f32> = first.iter().zip(&second).map(|(a, b)| a - b).collect();
    let (mirror, distance) = normalize(&difference);
    if distance < SAME_DIRECTION {
        return Err("the two directions of `swap` are the same, so there is nothing to exchange".into());
    }
    Ok(CompiledAction::Edit(Edit::Swap(mirror)))
}

/// Reflects at the hyperplane orthogonal to the unit vector `mirror`.
pub(super) fn apply(picked: &mut [f32], mirror: &[f32]) {
    project_out::apply(picked, mirror, -1.0);
}

pub(super) fn backward(gradient: &mut [f32], mirror: &[f32]) {
    project_out::backward(gradient, mirror, -1.0);
}
