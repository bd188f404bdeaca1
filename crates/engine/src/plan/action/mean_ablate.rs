//! `mean_ablate`: replaces the selected values by a mean that the plan gives. It is `set` under the name of its purpose.

use super::operand::read_operand;
use super::{Action, CompiledAction, Operand, Writer, set};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::Value;

pub(super) fn read(value: Value, names: &Names) -> Result<Action, String> {
    Ok(Action::MeanAblate(read_operand(value, names)?))
}

pub(super) fn write(operand: &Operand, to: &Writer) -> Result<Value, String> {
    set::write(operand, to)
}

pub(super) fn compile(operand: &Operand, compiler: &mut Compiler, place: Place) -> Result<CompiledAction, String> {
    set::compile(operand, compiler, place)
}
