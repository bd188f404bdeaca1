//! `set`: replaces the selected values by an operand.

use super::operand::{read_operand, write_operand};
use super::{Action, CompiledAction, Edit, Given, Operand, Resolved, Writer};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::Value;

pub(super) fn read(value: Value, names: &Names) -> Result<Action, String> {
    Ok(Action::Set(read_operand(value, names)?))
}

pub(super) fn write(operand: &Operand, to: &Writer) -> Result<Value, String> {
    Ok(write_operand(operand, to.names))
}

pub(super) fn compile(operand: &Operand, compiler: &mut Compiler, place: Place) -> Result<CompiledAction, String> {
    let given = match operand {
        Operand::From(_) if place.on_attention() && place.tap.keys.is_some() => {
            return Err("`set` from another site takes all keys".into());
        }
        Operand::From(from) if place.on_attention() => Given::Source(compiler.source(from, place)?),
        operand => compiler.given(operand, place)?,
    };
    Ok(CompiledAction::Edit(Edit::Set(given)))
}

pub(super) fn apply(picked: &mut [f32], written: Resolved) {
    written.zip(picked, |x, v| *x = v);
}

/// All of the gradient belongs to what was written.
pub(super) fn backward(gradient: &mut [f32]) -> Vec<f32> {
    let written = gradient.to_vec();
    gradient.fill(0.0);
    written
}
