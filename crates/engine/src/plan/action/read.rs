//! `as`: makes what a tap selects a value of the plan, by its name.

use super::{Action, CompiledAction, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::{Value, json};

/// The name is not part of the action: it was registered before, with the other values' names.
pub(super) fn read(_: Value, _: &Names) -> Result<Action, String> {
    Ok(Action::Read)
}

pub(super) fn write(to: &Writer) -> Result<Value, String> {
    Ok(json!(to.names.of_tap(to.tap)))
}

pub(super) fn compile(_: &mut Compiler, _: Place) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Read)
}
