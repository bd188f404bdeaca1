//! Bencher's metric format: `{benchmark: {measure: {value, lower_value, upper_value}}}`.

use crate::result::SessionResult;
use serde_json::{Map, Value, json};

/// Converts a session: every variant's value on every workload, and its ratio to the reference.
pub fn bencher(result: &SessionResult) -> Value {
    let mut benchmarks = Map::new();
    for comparison in &result.comparisons {
        let name = format!("{}/{}/{}", result.suite.name, comparison.workload, comparison.variant);
        let ratio = comparison.log_ratio.exp();
        let entry = benchmarks.entry(name).or_insert_with(|| json!({}));
        if let Value::Object(measures) = entry {
            measures.insert(comparison.metric.name().into(), json!({ "value": comparison.value }));
            if ratio.low.is_finite() && ratio.high.is_finite() {
                let ratio = json!({"value": ratio.mean, "lower_value": ratio.low, "upper_value": ratio.high});
                measures.insert(format!("{}-ratio-to-{}", comparison.metric.name(), comparison.reference), ratio);
            }
        }
    }
    Value::Object(benchmarks)
}
