//! `skip`: replaces a layer's output by an operand, or by the layer's input. If all rows skip a
//! layer at all positions, it does not run.

use super::operand::{read_operand, write_operand};
use super::{Action, ActionWriter, CompiledAction, FromSite, Operand, set};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use crate::point::Point;
use crate::site::Site;
use serde_json::{Value, json};

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Skip(None)),
        Value::Object(_) => Ok(Action::Skip(Some(read_operand(value, names)?))),
        _ => Err("`skip` must be true or an object with the layer's output".into()),
    }
}

pub(super) fn write(operand: &Option<Operand>, to: &ActionWriter) -> Result<Value, String> {
    Ok(match operand {
        None => json!(true),
        Some(operand) => match write_operand(operand, to.names) {
            object @ Value::Object(_) => object,
            plain => json!({ "vector": plain }),
        },
    })
}

pub(super) fn compile(
    operand: &Option<Operand>,
    compiler: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    match operand {
        Some(operand) => set::compile(operand, compiler, target),
        None => {
            let layer_input = Site { point: Point::ResidPre, ..target.site }.to_string();
            let input = FromSite { site: Some(layer_input), rows: None, positions: None };
            set::compile(&Operand::From(input), compiler, target)
        }
    }
}
