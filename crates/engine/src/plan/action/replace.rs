//! `replace`: runs one expert in place of another. Exchanges chosen experts in `expert_indices`;
//! the weights of the slots stay.

use super::{Action, ActionWriter, CompiledAction, Edit};
use crate::plan::compile::{Compiler, TapSite};
use crate::plan::json_value::ValueParser;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn read(value: Value, _: &ValueParser) -> Result<Action, String> {
    let pair = |(from, to): (&String, &Value)| Some((from.parse().ok()?, usize::try_from(to.as_u64()?).ok()?));
    let experts = value.as_object().and_then(|object| object.iter().map(pair).collect::<Option<_>>());
    experts
        .map(Action::Replace)
        .ok_or_else(|| format!("`replace` is {value}; write {{\"5\": 2}}, which runs expert 2 in place of expert 5"))
}

pub(super) fn write(experts: &BTreeMap<usize, usize>, _: &ActionWriter) -> Result<Value, String> {
    Ok(json!(experts))
}

pub(super) fn compile(
    experts: &BTreeMap<usize, usize>,
    _: &mut Compiler,
    target: TapSite,
) -> Result<CompiledAction, String> {
    let Some(routed) = target.edge.routed.filter(|_| target.edge.integer) else {
        return Err("`replace` exchanges experts, which only expert_indices holds".into());
    };
    if experts.is_empty() {
        return Err("`replace` names no experts".into());
    }
    for &expert in experts.iter().flat_map(|(from, to)| [from, to]) {
        check_expert(expert as f32, routed.experts)?;
    }
    Ok(CompiledAction::Edit(Edit::Replace(experts.clone())))
}

pub(super) fn apply(picked: &mut [f32], experts: &BTreeMap<usize, usize>) {
    for choice in picked {
        if let Some(&to) = experts.get(&(*choice as usize)) {
            *choice = to as f32;
        }
    }
}

/// Rejects a number that is not the index of one of `count` experts.
pub(crate) fn check_expert(number: f32, count: usize) -> Result<(), String> {
    if number.fract() == 0.0 && number >= 0.0 && number < count as f32 {
        return Ok(());
    }
    Err(format!("there is no expert {number}: this layer has {count}, numbered from 0"))
}
