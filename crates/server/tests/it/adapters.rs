//! LoRA adapters that requests choose by name.

use crate::inspection::floats;
use crate::model_files::{adapter, files, stories};
use crate::support::{TEMPLATE, TestServer};
use pellucid_engine::{Plan, RunOptions};
use pellucid_models::chat::ChatTemplate;
use pellucid_models::{LoadOptions, LoadedModel};
use pellucid_server::{ModelFiles, ServerOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A server of the built-in model with the adapters `a` and `b`.
struct Adapted {
    model: TempDir,
    adapters: [TempDir; 2],
    server: TestServer,
}

fn adapted() -> &'static Adapted {
    static ADAPTED: OnceLock<Adapted> = OnceLock::new();
    ADAPTED.get_or_init(|| {
        let model = stories();
        let adapters = [1, 2].map(|seed| adapter(model.path(), seed));
        let files = ModelFiles {
            adapters: ["a", "b"]
                .into_iter()
                .zip(&adapters)
                .map(|(name, dir)| (name.into(), dir.path().into()))
                .collect(),
            chat: Some(ChatTemplate::new(TEMPLATE, Path::new("t.jinja"))),
            ..files("stories", model.path())
        };
        let aliases = vec!["gpt-4o-mini=stories:b".parse().expect("an alias")];
        let server = TestServer::of(vec![files], ServerOptions { aliases, ..ServerOptions::default() });
        Adapted { model, adapters, server }
    })
}

/// The model with one merged adapter, or none.
fn merged(adapter: Option<usize>) -> LoadedModel {
    let Adapted { model, adapters, .. } = adapted();
    let adapters = adapter.map(|index| adapters[index].path().to_owned()).into_iter().collect();
    LoadedModel::open(model.path(), &LoadOptions { adapters, ..LoadOptions::default() }, &mut |_| {}).expect("a model")
}

fn logits_of(loaded: &LoadedModel, tokens: &[u32]) -> Vec<f32> {
    let run = loaded.model.run(&[tokens.to_vec()], &Plan::capture(["logits"]), &RunOptions::default()).expect("a run");
    run.captures[0].array.values().to_vec()
}

/// The largest difference, relative to the largest element of `truth`.
fn relative(ours: &[f32], truth: &[f32]) -> f32 {
    golden::difference(ours, truth) / truth.iter().fold(0.0, |most: f32, x| most.max(x.abs()))
}

const NAMES: [Option<&str>; 3] = [Some("a"), Some("b"), None];

#[test]
fn adapters_give_what_the_merged_model_gives() {
    let server = &adapted().server;
    let tokens = merged(None).encode("Tom saw a dog. The").expect("tokens");
    let plain = logits_of(&merged(None), &tokens);
    for (index, name) in NAMES.into_iter().enumerate() {
        let request = json!({"prompt": tokens, "adapter": name, "capture": ["logits"]});
        let ours = floats(&server.ok("/v1/run", &request)["tensors"][0]);
        let truth = logits_of(&merged(name.map(|_| index)), &tokens);
        assert!(relative(&ours, &truth) < 1e-4, "{name:?}: {}", relative(&ours, &truth));
        assert_eq!(relative(&ours, &plain) > 1e-2, name.is_some(), "{name:?} changes the model");
    }
}

/// A streamed request of client `number`, whose adapter differs from its neighbors'.
fn request(number: usize) -> Value {
    json!({
        "prompt": format!("Tom saw {number} birds. Then"), "adapter": NAMES[number % 3],
        "max_tokens": 8 + number % 9, "temperature": 0.7, "seed": number, "ignore_eos": true, "logprobs": 1,
    })
}

#[test]
fn requests_with_different_adapters_have_the_bits_of_solo_runs_under_load() {
    let server = &adapted().server;
    let answer = |number: usize| {
        let choice = server.ok("/v1/completions", &request(number))["choices"][0].clone();
        (choice["text"].clone(), choice["logprobs"].clone())
    };
    let solo: Vec<_> = (0..12).map(answer).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..36).map(|client| scope.spawn(move || answer(client % 12))).collect();
        for (client, answered) in clients.into_iter().enumerate() {
            assert_eq!(answered.join().expect("an answer"), solo[client % 12], "client {client}");
        }
    });
    assert_eq!(server.metric("pellucid_model_loads_total"), 1.0, "all adapters share one model");
}

#[test]
fn every_route_that_runs_the_model_takes_an_adapter() {
    let server = &adapted().server;
    let logits = json!([{"site": "logits", "positions": "last"}]);
    let user = json!([{"role": "user", "content": "a"}]);
    let branches = json!([{"taps": []}]);
    let routes = [
        ("/v1/run", json!({"prompt": "Tom", "capture": logits}), "tensors"),
        ("/v1/lens", json!({"prompt": "Tom"}), "rows"),
        ("/v1/embeddings", json!({"input": "Tom"}), "data"),
        (
            "/v1/project",
            json!({"prompt": "Tom", "site": "layers.1.mlp_out", "directions": [vec![1.0; 128]]}),
            "tensors",
        ),
        ("/v1/completions", json!({"prompt": "Tom", "logprobs": 0, "max_tokens": 2, "temperature": 0}), "choices"),
        (
            "/v1/chat/completions",
            json!({"messages": user, "logprobs": true, "max_tokens": 2, "temperature": 0}),
            "choices",
        ),
    ];
    for (path, request, field) in routes {
        let with = |key: &str, value: &str| {
            let mut request = request.clone();
            request[key] = json!(value);
            server.ok(path, &request)
        };
        let (plain, by_field) = (server.ok(path, &request), with("adapter", "b"));
        assert_ne!(plain[field], by_field[field], "{path}");
        assert_eq!(by_field["model"], "stories:b", "{path}");
        for name in ["stories:b", "b", "gpt-4o-mini"] {
            assert_eq!(with("model", name)[field], by_field[field], "{path} with the model {name}");
        }
        let mut unknown = request.clone();
        unknown["adapter"] = json!("c");
        let (status, answer) = server.post(path, &unknown);
        assert_eq!((status, &answer["error"]["param"]), (404, &json!("adapter")), "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("a, b")), "{answer}");
    }
    let request = json!({"prompt": "Tom", "branches": branches, "capture": logits});
    let mut with = request.clone();
    with["adapter"] = json!("b");
    let of = |request: &Value| floats(&server.stream("/v1/branches", request)[0]["tensors"][0]);
    assert_ne!(of(&with), of(&request));
    let run = json!({"prompt": "Tom", "capture": logits, "adapter": "b"});
    assert_eq!(of(&with), floats(&server.ok("/v1/run", &run)["tensors"][0]));
}

#[test]
fn adapters_are_listed_as_models_with_their_parent() {
    let server = &adapted().server;
    let (_, list) = server.get("/v1/models");
    let of =
        |key: &str| list["data"].as_array().expect("a list").iter().map(|model| model[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("id"), ["stories", "stories:a", "stories:b", "gpt-4o-mini"]);
    assert_eq!(of("parent"), [Value::Null, json!("stories"), json!("stories"), json!("stories")]);
    assert_eq!(of("root"), ["stories", "stories:a", "stories:b", "stories:b"]);
    let (status, one) = server.get("/v1/models/stories:a");
    assert_eq!((status, &one["parent"]), (200, &json!("stories")));
}

#[test]
fn two_adapters_in_one_request_are_refused() {
    let server = &adapted().server;
    let (status, answer) =
        server.post("/v1/completions", &json!({"model": "stories:a", "adapter": "b", "prompt": "a"}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("adapter")), "{answer}");
    server.ok("/v1/completions", &json!({"model": "stories:a", "adapter": "a", "prompt": "a", "max_tokens": 1}));
}
