//! `stop`: ends the row's generation where the tap's condition holds. The token that the same pass
//! samples is the last one.

use super::{Action, ActionWriter, CompiledAction};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use crate::plan::when::{Condition, Consequence};
use serde_json::{Value, json};

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Stop),
        _ => Err("`stop` must be true".into()),
    }
}

pub(super) fn write(_: &ActionWriter) -> Result<Value, String> {
    Ok(json!(true))
}

pub(super) fn compile(_: &mut Compiler, target: TapSite) -> Result<CompiledAction, String> {
    compile_condition("stop", target, Consequence::Stop)
}

/// Compiles a tap whose only effect is its condition.
pub(super) fn compile_condition(key: &str, target: TapSite, then: Consequence) -> Result<CompiledAction, String> {
    let Some(when) = &target.tap.when else {
        return Err(format!("`{key}` needs a condition, `when`"));
    };
    if when.site != target.tap.site {
        return Err(format!("`{key}` acts at the site of its condition, `{}`; leave out `site`", when.site));
    }
    if target.edge.integer {
        return Err("`when` cannot test expert indices; test router_logits instead".into());
    }
    if target.tap.heads.is_some() || target.tap.units.is_some() || target.tap.experts.is_some() {
        return Err(format!("`{key}` reads all units of its site; select with zeros in the direction"));
    }
    Ok(CompiledAction::Condition(Condition::new(when, target.columns.len(), then)?))
}
