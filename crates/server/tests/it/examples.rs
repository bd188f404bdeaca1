//! The examples of the OpenAPI description are valid requests.

use crate::support::TestServer;
use serde_json::{Value, json};

/// Replaces the shortened vectors of an example by ones as wide as the model.
fn widen(value: &mut Value) {
    match value {
        Value::Array(list) if list.len() == 2 && list.iter().all(Value::is_f64) => {
            let pattern = list.clone();
            *list = pattern.into_iter().cycle().take(128).collect();
        }
        Value::Array(list) => list.iter_mut().for_each(widen),
        Value::Object(fields) => fields.values_mut().for_each(widen),
        _ => {}
    }
}

fn description() -> Value {
    serde_json::from_str(&pellucid_server::openapi()).expect("JSON")
}

#[test]
fn every_example_of_the_description_runs() {
    let (server, api) = (TestServer::shared(), description());
    for path in ["/v1/completions", "/v1/run"] {
        let content = &api["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        let examples = content["examples"].as_object().expect("examples");
        assert!(examples.len() >= 20, "{path}");
        for (name, example) in examples {
            let mut request = example["value"].clone();
            widen(&mut request);
            if path == "/v1/completions" {
                request["max_tokens"] = json!(3);
                request["temperature"] = json!(0);
            }
            let (status, answer) = server.post(path, &request);
            // Only a generation can end by a condition.
            let expected = if (path, name.as_str()) == ("/v1/run", "stop") { 400 } else { 200 };
            assert_eq!(status, expected, "{path} {name}: {answer}");
            assert!(example["summary"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        }
    }
}

#[test]
fn the_examples_of_fields_run() {
    let (server, api) = (TestServer::shared(), description());
    let fields = &api["components"]["schemas"]["PlanFields"]["properties"];
    for field in ["plan", "capture", "steer"] {
        let mut request = json!({"prompt": "Tom", "max_tokens": 1});
        request[field] = fields[field]["example"].clone();
        assert!(!request[field].is_null(), "{field}: {fields}");
        widen(&mut request);
        server.ok("/v1/completions", &request);
    }
}
