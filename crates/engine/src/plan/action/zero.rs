//! `zero`: sets the selected elements to zero.

use super::{Action, ActionWriter, CompiledAction, Edit, EditSource};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Zero),
        _ => Err("`zero` must be true".into()),
    }
}

pub(super) fn write(_: &ActionWriter) -> Result<Value, String> {
    Ok(json!(true))
}

pub(super) fn compile(_: &mut Compiler, _: TapSite) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Edit(Edit::Set(EditSource::Number(0.0))))
}
