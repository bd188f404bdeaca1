//! `mean_ablate`: replaces the selected elements by a mean supplied in the plan. Same as `set`.

use super::operand::read_operand;
use super::{Action, ActionWriter, CompiledAction, Operand, set};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    Ok(Action::MeanAblate(read_operand(value, names)?))
}

pub(super) fn write(operand: &Operand, to: &ActionWriter) -> Result<Value, String> {
    set::write(operand, to)
}

pub(super) fn compile(operand: &Operand, compiler: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
    set::compile(operand, compiler, target)
}
