//! A plan with placeholders, and the values over which it is repeated.

use crate::api_error::{ApiError, ApiResult};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A plan that is repeated for many values.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Template {
    /// A plan with placeholders in braces, such as `"site": "layers.{layer}.z"` or `"heads":
    /// ["{head}"]`. A text that is only a placeholder becomes the number.
    #[schemars(with = "Map<String, Value>")]
    pub plan: Value,
    /// The values of each placeholder: `{"layer": [0, 1, 2], "head": [0, 1]}`. There is one plan
    /// for each combination.
    pub over: BTreeMap<String, Vec<i64>>,
}

/// A plan of a sweep with its label.
pub struct LabeledPlan {
    pub label: String,
    pub plan: Value,
}

impl Template {
    /// All plans, at most `most`; the last placeholder in alphabetical order changes fastest.
    pub fn plans(&self, most: usize) -> ApiResult<Vec<LabeledPlan>> {
        let count = self.over.values().try_fold(1_usize, |count, values| count.checked_mul(values.len()));
        if count.is_none_or(|count| !(1..=most).contains(&count)) {
            let message = format!("`over` must have from 1 to {most} combinations of values");
            return Err(ApiError::field("template.over", message));
        }
        if let Some(name) = self.over.keys().find(|name| !contains(&self.plan, &placeholder(name))) {
            let message = format!("the plan of the template has no placeholder {{{name}}}");
            return Err(ApiError::field("template.plan", message));
        }
        let mut plans = vec![LabeledPlan { label: String::new(), plan: self.plan.clone() }];
        for (name, values) in &self.over {
            let with_value = |before: &LabeledPlan, value: i64| {
                let separator = if before.label.is_empty() { "" } else { " " };
                LabeledPlan {
                    label: format!("{}{separator}{name}={value}", before.label),
                    plan: fill(&before.plan, &placeholder(name), value),
                }
            };
            plans =
                plans.iter().flat_map(|before| values.iter().map(move |&value| with_value(before, value))).collect();
        }
        Ok(plans)
    }
}

fn placeholder(name: &str) -> String {
    format!("{{{name}}}")
}

fn contains(value: &Value, placeholder: &str) -> bool {
    match value {
        Value::String(text) => text.contains(placeholder),
        Value::Array(values) => values.iter().any(|value| contains(value, placeholder)),
        Value::Object(fields) => fields.values().any(|value| contains(value, placeholder)),
        _ => false,
    }
}

fn fill(value: &Value, placeholder: &str, number: i64) -> Value {
    match value {
        Value::String(text) if text == placeholder => number.into(),
        Value::String(text) => text.replace(placeholder, &number.to_string()).into(),
        Value::Array(values) => values.iter().map(|value| fill(value, placeholder, number)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), fill(value, placeholder, number))).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(plan: Value, over: Value) -> Template {
        serde_json::from_value(json!({ "plan": plan, "over": over })).expect("a template")
    }

    #[test]
    fn there_is_a_plan_for_each_combination_of_values() {
        let plan = json!({"taps": [{"site": "layers.{layer}.z", "heads": ["{head}"], "zero": true}]});
        let plans = template(plan, json!({"layer": [2, 0], "head": [1, 3]})).plans(4).expect("plans");
        let labels: Vec<&str> = plans.iter().map(|plan| plan.label.as_str()).collect();
        assert_eq!(labels, ["head=1 layer=2", "head=1 layer=0", "head=3 layer=2", "head=3 layer=0"]);
        assert_eq!(plans[1].plan["taps"][0], json!({"site": "layers.0.z", "heads": [1], "zero": true}));
    }

    #[test]
    fn combinations_are_limited_and_placeholders_must_occur() {
        let plan = json!({"taps": [{"site": "layers.{layer}.z", "zero": true}]});
        let error = |over: Value, most: usize| {
            template(plan.clone(), over).plans(most).err().expect("an error").detail.param.expect("a field")
        };
        assert_eq!(error(json!({"layer": [0, 1, 2]}), 2), "template.over");
        assert_eq!(error(json!({"layer": []}), 2), "template.over");
        assert_eq!(error(json!({"layer": [0], "head": [1]}), 2), "template.plan");
    }
}
