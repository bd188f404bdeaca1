//! The schema of result files has exactly the fields of a result.

use crate::conforms::problems;
use crate::machine;
use pellucid_lab::result::{SCHEMA, SCHEMA_TEXT, SessionResult};
use serde_json::{Value, json};

fn schema() -> Value {
    serde_json::from_str(SCHEMA_TEXT).expect("JSON")
}

fn names(root: &Value, pointer: &str) -> Vec<String> {
    let part = root.pointer(pointer).unwrap_or_else(|| panic!("{pointer} is not in the schema"));
    let mut names: Vec<String> = part["properties"].as_object().expect("properties").keys().cloned().collect();
    names.sort();
    names
}

/// Returns all keys of some objects.
fn keys<'v>(values: impl IntoIterator<Item = &'v Value>) -> Vec<String> {
    let mut keys: Vec<String> =
        values.into_iter().filter_map(Value::as_object).flat_map(|object| object.keys().cloned()).collect();
    keys.sort();
    keys.dedup();
    keys
}

#[test]
fn a_result_has_exactly_the_fields_of_the_schema() {
    let root = schema();
    assert_eq!(root["$id"], SCHEMA);
    let result: SessionResult = machine::full_result();
    let value = serde_json::to_value(&result).expect("JSON");
    let mut found = Vec::new();
    problems(&root, &root, &value, "result", &mut found);
    assert_eq!(found, Vec::<String>::new());

    let all = |name: &str| value[name].as_array().expect("a list").iter();
    assert_eq!(keys([&value]), names(&root, ""));
    assert_eq!(
        keys(all("runs")),
        names(&root, "/$defs/run"),
        "an answering and a failing run together have every field"
    );
    assert_eq!(keys(all("runs").map(|run| &run["answer"])), names(&root, "/$defs/answer"));
    assert_eq!(keys(all("comparisons")), names(&root, "/$defs/comparison"));
    assert_eq!(keys(all("cells")), names(&root, "/$defs/cell"));
    assert_eq!(keys(all("models")), names(&root, "/$defs/model"));
    assert_eq!(keys(all("allocations")), names(&root, "/$defs/counted"));
    assert_eq!(keys([&value["roofline"]]), names(&root, "/$defs/roofline"));
    assert_eq!(keys([&value["suite"]]), names(&root, "/$defs/suite"));
    assert_eq!(keys([&value["session"]]), names(&root, "/$defs/session"));
    assert_eq!(keys([&value["environment"]]), names(&root, "/$defs/environment"));
    for part in ["variant", "workload", "limit"] {
        let pointer = format!("/$defs/suite/properties/{part}/items");
        assert_eq!(keys(value["suite"][part].as_array().expect("a list")), names(&root, &pointer), "{part}");
    }
}

/// Intervals of one pair are infinite: such files were once written and could not be read.
#[test]
fn infinite_intervals_are_read_back_and_fit_the_schema() {
    let root = schema();
    let mut result: SessionResult = machine::full_result();
    for comparison in &mut result.comparisons {
        (comparison.log_ratio.low, comparison.log_ratio.high) = (f64::NEG_INFINITY, f64::INFINITY);
        comparison.noise = f64::INFINITY;
    }
    result.cells[0].max_abs = f32::INFINITY;
    result.runs[0].answer.as_mut().expect("it answered").values = vec![f32::NEG_INFINITY, 0.1];
    let text = serde_json::to_string(&result).expect("JSON");
    let back: SessionResult = serde_json::from_str(&text).expect("read back");
    assert_eq!(back, result);
    assert_eq!(serde_json::to_string(&back).expect("JSON"), text, "a second round changes nothing");
    let (value, mut found) = (serde_json::to_value(&result).expect("JSON"), Vec::new());
    problems(&root, &root, &value, "result", &mut found);
    assert_eq!(found, Vec::<String>::new());
    // Older files have null instead.
    let old = text.replace("\"-inf\"", "null").replace("\"inf\"", "null");
    let old: SessionResult = serde_json::from_str(&old).expect("older files can be read");
    assert!(old.comparisons[0].log_ratio.low.is_nan());
}

#[test]
fn invalid_results_violate_the_schema() {
    let root = schema();
    let good = serde_json::to_value(machine::full_result()).expect("JSON");
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value);
        let mut found = Vec::new();
        problems(&root, &root, &value, "result", &mut found);
        found.join("; ")
    };
    assert!(broken(&|v| v["schema"] = json!("pellucid/lab-result/v2")).contains("is not"));
    assert!(broken(&|v| v["runs"][0]["bananas"] = json!(1)).contains("bananas is unknown"));
    assert!(broken(&|v| v["comparisons"][0]["verdict"] = json!("fine")).contains("not a known name"));
    assert!(broken(&|v| v["comparisons"][0]["pairs"] = json!("two")).contains("string where"));
    assert!(broken(&|v| v["suite"]["workload"][0]["job"] = json!("dance")).contains("matches no choice"));
    let without = broken(&|v| {
        v["session"].as_object_mut().expect("an object").remove("seed");
    });
    assert!(without.contains("seed is missing"));
}
