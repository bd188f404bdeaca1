//! An example of each form of looking in, for the OpenAPI description.
//!
//! `tests/it/examples.rs` sends each of them to a server, with vectors as wide as its model.

use serde_json::{Value, json};
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, RefOr, Schema};

/// The routes whose requests have the examples, with the field that holds their input.
const ROUTES: [&str; 2] = ["/v1/completions", "/v1/run"];

/// Adds the examples to the requests of completions and runs, and one each to the fields `plan` and
/// `steer`, whose own ones utoipa leaves out because they are objects or null.
pub fn add_to(api: &mut OpenApi) {
    add_to_fields(api);
    for route in ROUTES {
        let operation: Option<&mut Operation> = api.paths.paths.get_mut(route).and_then(|item| item.post.as_mut());
        let Some(RefOr::T(body)) = operation.and_then(|operation| operation.request_body.as_mut()) else { continue };
        let Some(RefOr::T(content)) = body.content.get_mut("application/json") else { continue };
        for (name, summary, fields) in all() {
            let mut request = json!({"prompt": "Tom saw a dog. The"});
            if let (Some(request), Value::Object(fields)) = (request.as_object_mut(), fields) {
                request.extend(fields);
            }
            let example = ExampleBuilder::new().summary(summary).value(Some(request)).build();
            content.examples.insert(name.to_owned(), example.into());
        }
    }
}

fn add_to_fields(api: &mut OpenApi) {
    let schema = api.components.as_mut().and_then(|components| components.schemas.get_mut("PlanFields"));
    let Some(RefOr::T(Schema::Object(plan_fields))) = schema else { return };
    for name in ["plan", "steer"] {
        let example = all().into_iter().find_map(|(_, _, fields)| fields.get(name).cloned());
        if let Some(RefOr::T(Schema::Object(field))) = plan_fields.properties.get_mut(name) {
            field.example = example;
        }
    }
}

/// Name, summary and fields of each example. Vectors are as wide as their site; here they are
/// shortened.
fn all() -> Vec<(&'static str, &'static str, Value)> {
    let (v, u, site) = (json!([0.5, -1.0]), json!([1.0, 0.25]), "layers.2.resid_post");
    let steer = |operation: Value| json!({"steer": {"layers": {"2": {"operations": [operation]}}}});
    let tap = |action: &str, value: Value| json!({"plan": {"taps": [{"site": site, action: value}]}});
    let when = |bounds: Value, tap: Value| {
        let mut tap = tap;
        tap["when"] = json!({"site": site, "direction": v});
        if let (Some(when), Value::Object(bounds)) = (tap["when"].as_object_mut(), bounds) {
            when.extend(bounds);
        }
        json!({"plan": {"taps": [tap]}})
    };
    let capture = |positions: Value| json!({"capture": [{"site": site, "positions": positions}]});
    vec![
        (
            "capture",
            "Capture sites",
            json!({"capture": ["layers.*.resid_post", {"site": "logits", "positions": "last"}]}),
        ),
        ("capture_bf16", "Captures of half the size", json!({"capture": [site], "capture_dtype": "bf16"})),
        ("capture_reduced", "Capture the norm at each position", tap("capture", json!({"reduce": "norm"}))),
        ("steer_add", "Add a vector", steer(json!({"type": "add", "vector": v, "scale": 4.0}))),
        ("steer_cap", "Cap the component along a vector", steer(json!({"type": "cap", "vector": v, "max": 2.0}))),
        ("steer_ablation", "Remove a component", steer(json!({"type": "ablation", "vector": v, "scale": 0.0}))),
        ("set", "Set an activation", tap("set", v.clone())),
        ("add", "Add a scaled vector", tap("add", json!({"vector": v, "scale": 0.5}))),
        ("scale", "Scale an activation", tap("scale", json!(0.3))),
        ("zero", "Zero a head", json!({"plan": {"taps": [{"site": "layers.2.z", "heads": [0], "zero": true}]}})),
        ("mean_ablate", "Replace by a mean", tap("mean_ablate", v.clone())),
        ("project_out", "Remove a direction", tap("project_out", json!({"vector": v}))),
        ("cap", "Bound the component along a direction", tap("cap", json!({"vector": v, "min": -1.0, "max": 2.0}))),
        ("add_scaled", "Add a vector relative to the norm", tap("add_scaled", json!({"vector": v, "scale": 0.5}))),
        ("norm_match", "Add a vector and keep the norm", tap("norm_match", json!({"vector": v, "scale": 2.0}))),
        ("orthogonal", "Add the orthogonal part of a vector", tap("orthogonal", json!({"vector": v, "scale": 0.1}))),
        ("swap", "Swap two components", tap("swap", json!([v, u]))),
        ("skip", "Skip a layer", json!({"plan": {"taps": [{"site": "layers.2", "skip": true}]}})),
        (
            "when_above",
            "Steer only where a dot product is high",
            when(json!({"above": 1.0}), json!({"site": "layers.3.resid_post", "scale": 0.5})),
        ),
        (
            "when_below",
            "Steer only where it is low",
            when(json!({"below": 1.0}), json!({"site": "layers.3.resid_post", "zero": true})),
        ),
        (
            "mark",
            "Report positions where a condition holds",
            when(json!({"above": 1.0, "below": 9.0}), json!({"mark": "between"})),
        ),
        ("stop", "End a row by a condition", when(json!({"above": 450}), json!({"phase": "decode", "stop": true}))),
        (
            "positions",
            "Steer a slice of the positions",
            json!({"plan": {"taps": [{"site": site, "positions": "1:-1", "scale": 0.5}]}}),
        ),
        ("prompt_positions", "Capture the prompt", capture(json!("prompt"))),
        ("token_positions", "Capture at a token", capture(json!({"token": " dog"}))),
    ]
}
