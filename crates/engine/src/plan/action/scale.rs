//! `scale`: multiplies the selected elements.

use super::{Action, ActionWriter, CompiledAction, Edit};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    Ok(Action::Scale(value.as_f64().ok_or("`scale` must be a number")? as f32))
}

pub(super) fn write(by: &f32, _: &ActionWriter) -> Result<Value, String> {
    Ok(json!(by))
}

pub(super) fn compile(by: &f32, _: &mut Compiler, _: TapSite) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::Scale(*by)))
}

pub(super) fn apply(picked: &mut [f32], by: f32) {
    picked.iter_mut().for_each(|x| *x *= by);
}

pub(super) fn backward(gradient: &mut [f32], by: f32) {
    apply(gradient, by);
}
