//! `skip`: a layer's output is replaced by an operand, or by the layer's input. A layer that every position of every row skips
//! does not run.

use super::operand::{read_operand, write_operand};
use super::{Action, CompiledAction, FromSite, Operand, Writer, set};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use crate::point::Point;
use crate::site::Site;
use serde_json::{Value, json};

pub(super) fn read(value: Value, names: &Names) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Skip(None)),
        Value::Object(_) => Ok(Action::Skip(Some(read_operand(value, names)?))),
        _ => Err("`skip` takes true, or what leaves the layer instead".into()),
    }
}

pub(super) fn write(operand: &Option<Operand>, to: &Writer) -> Result<Value, String> {
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
    place: Place,
) -> Result<CompiledAction, String> {
    match operand {
        Some(operand) => set::compile(operand, compiler, place),
        None => {
            let before = Site { point: Point::ResidPre, ..place.site }.to_string();
            let input = FromSite { site: Some(before), rows: None, positions: None };
            set::compile(&Operand::From(input), compiler, place)
        }
    }
}
