//! `as`: reads the selected activation into a named value of the plan.

use super::{Action, ActionWriter, CompiledAction};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};

/// Ignores the name, which [`ValueParser::add_read`] has already registered.
pub(super) fn read(_: Value, _: &ValueParser) -> Result<Action, String> {
    Ok(Action::Read)
}

pub(super) fn write(to: &ActionWriter) -> Result<Value, String> {
    Ok(json!(to.names.tap_name(to.tap)))
}

pub(super) fn compile(_: &mut Compiler, _: TapSite) -> Result<CompiledAction, String> {
    Ok(CompiledAction::Read)
}
