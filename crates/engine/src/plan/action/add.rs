//! `add`: adds a scaled operand.

use super::operand::{read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, Operand, TokenOperand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Map, Value, json};

pub(super) fn read(mut value: Value, names: &ValueParser) -> Result<Action, String> {
    let scale = value.as_object_mut().and_then(|object| object.remove("scale"));
    let scale = scale.map_or(Ok(1.0), |scale| scale.as_f64().ok_or("`scale` must be a number"))?;
    Ok(Action::Add { operand: read_operand(value, names)?, scale: scale as f32 })
}

pub(super) fn write(operand: &Operand, scale: &f32, to: &ActionWriter) -> Result<Value, String> {
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
    target: TapSite,
) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::Add(compiler.edit_source(operand, target)?, *scale)))
}

pub(super) fn apply(picked: &mut [f32], operand: TokenOperand, scale: f32) {
    operand.zip(picked, |x, v| *x += scale * v);
}

/// Returns the operand's gradient; the input's gradient is the output's.
pub(super) fn backward(gradient: &[f32], scale: f32) -> Vec<f32> {
    gradient.iter().map(|g| g * scale).collect()
}
