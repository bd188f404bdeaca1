//! `add`: adds an operand, times a scale.

use super::operand::{read_operand, write_operand};
use super::{Action, CompiledAction, Edit, Operand, Resolved, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::{Map, Value, json};

pub(super) fn read(mut value: Value, names: &Names) -> Result<Action, String> {
    let scale = value.as_object_mut().and_then(|object| object.remove("scale"));
    let scale = scale.map_or(Ok(1.0), |scale| scale.as_f64().ok_or("`scale` takes a number"))?;
    Ok(Action::Add { operand: read_operand(value, names)?, scale: scale as f32 })
}

pub(super) fn write(operand: &Operand, scale: &f32, to: &Writer) -> Result<Value, String> {
    let mut value = match write_operand(operand, to.names) {
        Value::Object(object) => object,
        plain => Map::from_iter([("vector".to_string(), plain)]),
    };
    value.insert("scale".into(), json!(scale));
    Ok(Value::Object(value))
}

pub(super) fn compile(
    operand: &Operand,
    scale: &f32,
    compiler: &mut Compiler,
    place: Place,
) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::Add(compiler.given(operand, place)?, *scale)))
}

pub(super) fn apply(picked: &mut [f32], written: Resolved, scale: f32) {
    written.zip(picked, |x, v| *x += scale * v);
}

/// The gradient stays; what was added has its share by the scale.
pub(super) fn backward(gradient: &[f32], scale: f32) -> Vec<f32> {
    gradient.iter().map(|g| g * scale).collect()
}
