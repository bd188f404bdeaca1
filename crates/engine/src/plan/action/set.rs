//! `set`: replaces the selected elements by an operand.

use super::operand::{read_operand, write_operand};
use super::replace::check_expert;
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
    if let Some(routed) = target.edge.routed.filter(|_| target.edge.integer) {
        check_indices(&source, compiler, routed.experts)?;
    }
    Ok(CompiledAction::Edit(Edit::Set(source)))
}

/// Rejects an operand that would write anything but expert indices. Computed values and indices of
/// other layers are checked when they are written.
fn check_indices(source: &EditSource, compiler: &Compiler, experts: usize) -> Result<(), String> {
    let check = |numbers: &[f32]| numbers.iter().try_for_each(|&number| check_expert(number, experts));
    match source {
        EditSource::Number(number) => check(&[*number]),
        EditSource::Vector(numbers) => check(numbers),
        EditSource::Rows(rows) => rows.iter().try_for_each(|row| check(row)),
        EditSource::Site(source) if compiler.program.edge(compiler.sources[*source].edge).integer => Ok(()),
        EditSource::Site(_) => Err("only expert_indices can be written to expert_indices".into()),
        EditSource::Value(_) => Ok(()),
    }
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
