//! `zero`: replaces the selected values by zeros.

use super::{Action, CompiledAction, Edit, Given, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::{Value, json};

pub(super) fn read(value: Value, _: &Names) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Zero),
        _ => Err("`zero` takes true".into()),
    }
}

pub(super) fn write(_: &Writer) -> Result<Value, String> {
    Ok(json!(true))
}

pub(super) fn compile(_: &mut Compiler, _: Place) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::Set(Given::Number(0.0))))
}
