//! `grad`: another action, on the gradient of a metric at the site instead of on the value.

use super::{Action, CompiledAction, Operand, Writer, keys};
use crate::plan::compile::{Compiler, Place};
use crate::plan::json_value::Names;
use serde_json::{Value, json};

pub(super) fn read(value: Value, names: &Names) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) }),
        Value::Object(mut inner) => {
            let metric = names.metric("grad", inner.remove("of"))?;
            Ok(Action::Grad { metric, action: Box::new(Action::from_json(inner, names)?) })
        }
        _ => Err("`grad` takes true, or an action on the gradient such as {\"zero\": true}".into()),
    }
}

pub(super) fn write(metric: &usize, action: &Action, to: &Writer) -> Result<Value, String> {
    if *metric == 0 && *action == Action::Capture(None) {
        return Ok(json!(true));
    }
    let mut inner = action.to_json(to)?;
    inner.insert("of".into(), json!(to.names.metric(*metric)));
    Ok(Value::Object(inner))
}

/// What can be done to a gradient: what could be done to the value, as far as it makes sense.
pub(super) fn compile(
    metric: &usize,
    action: &Action,
    compiler: &mut Compiler,
    place: Place,
) -> Result<CompiledAction, String> {
    if place.edge.integer || place.edge.aside {
        return Err(
            "there is no gradient: no gradient flows through a choice of experts or into a recurrent state".into()
        );
    }
    if action.operands().iter().any(|operand| matches!(operand, Operand::From(_))) {
        return Err("a gradient takes numbers, lists and values, not `from`".into());
    }
    if !action.facts().gradients || matches!(action, Action::Capture(Some(_))) {
        let known = keys(|facts| facts.gradients);
        return Err(format!("a gradient takes {known}; it is captured whole"));
    }
    Ok(CompiledAction::Grad { metric: *metric, action: Box::new(compiler.action(action, place)?) })
}
