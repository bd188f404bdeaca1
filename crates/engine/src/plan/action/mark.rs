//! `mark`: reports under a name each position where the tap's condition holds.

use super::stop::compile_condition;
use super::{Action, ActionWriter, CompiledAction};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use crate::plan::when::Consequence;
use serde_json::{Value, json};

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    match value {
        Value::String(name) => Ok(Action::Mark(name)),
        _ => Err("`mark` must be a name".into()),
    }
}

pub(super) fn write(name: &str, _: &ActionWriter) -> Result<Value, String> {
    Ok(json!(name))
}

pub(super) fn compile(name: &str, _: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
    compile_condition("mark", target, Consequence::Mark(name.to_string()))
}
