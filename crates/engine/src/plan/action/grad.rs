//! `grad`: applies another action to the gradient of a metric at the site instead of to the
//! activation.

use super::{Action, ActionWriter, CompiledAction, Operand, keys};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};

pub(super) fn read(value: Value, names: &ValueParser) -> Result<Action, String> {
    match value {
        Value::Bool(true) => Ok(Action::Grad { metric: 0, action: Box::new(Action::Capture(None)) }),
        Value::Object(mut inner) => {
            let metric = names.metric("grad", inner.remove("of"))?;
            Ok(Action::Grad { metric, action: Box::new(Action::from_json(inner, names)?) })
        }
        _ => Err("`grad` must be true or an action on the gradient, such as {\"zero\": true}".into()),
    }
}

pub(super) fn write(metric: &usize, action: &Action, to: &ActionWriter) -> Result<Value, String> {
    if *metric == 0 && *action == Action::Capture(None) {
        return Ok(json!(true));
    }
    let mut inner = action.to_json(to)?;
    to.names.write_metric(*metric, &mut inner)?;
    Ok(Value::Object(inner))
}

pub(super) fn compile(
    metric: &usize,
    action: &Action,
    compiler: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    if target.edge.integer || target.edge.observe_only {
        return Err("expert indices and recurrent states have no gradient".into());
    }
    if action.operands().iter().any(|operand| matches!(operand, Operand::From(_))) {
        return Err("an edit of a gradient takes numbers, lists and values, not `from`".into());
    }
    if !action.info().gradients || matches!(action, Action::Capture(Some(_))) {
        let known = keys(|info| info.gradients);
        return Err(format!("actions on a gradient are {known}; capture takes no reduction"));
    }
    Ok(CompiledAction::Grad { metric: *metric, action: Box::new(compiler.action(action, target)?) })
}

#[cfg(test)]
mod tests {
    use crate::Plan;

    /// Found by the fuzz target `plan`: the written plan named a metric without a name.
    #[test]
    fn a_gradient_without_a_metric_is_written_as_it_was_read() {
        for text in [
            r#"{"taps": [{"site": "embed", "grad": {"as": "g"}}]}"#,
            r#"{"taps": [], "values": [{"name": "w", "weight_grad": {"weight": "embed"}}]}"#,
        ] {
            let plan = Plan::from_json(text).expect("a plan, but not a complete one");
            assert_eq!(Plan::from_json(&plan.to_json().expect("written")), Ok(plan), "{text}");
        }
    }
}
