//! `set`: replaces the selected elements by an operand.

use super::operand::{read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, Edit, EditSource, Operand, TokenOperand};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::Value;

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    Ok(Action::Set(read_operand(value, names)?))
}

pub(super) fn write(operand: &Operand, to: &ActionWriter) -> Result<Value, String> {
    Ok(write_operand(operand, to.names))
}

pub(super) fn compile(operand: &Operand, compiler: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
    let source = match operand {
        Operand::From(_) if target.on_attention() && target.tap.keys.is_some() => {
            return Err("`set` from another site cannot select `keys`".into());
        }
        Operand::From(from) if target.on_attention() => EditSource::Site(compiler.source(from, target)?),
        operand => compiler.edit_source(operand, target)?,
    };
    Ok(CompiledAction::Edit(Edit::Set(source)))
}

pub(super) fn apply(picked: &mut [f32], operand: TokenOperand) {
    operand.zip(picked, |x, v| *x = v);
}

/// Returns the operand's gradient, which is the output's; the input's gradient is zero.
pub(super) fn backward(gradient: &mut [f32]) -> Vec<f32> {
    let operand_gradient = gradient.to_vec();
    gradient.fill(0.0);
    operand_gradient
}
