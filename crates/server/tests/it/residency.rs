//! Several models in one process: loaded on demand, unloaded for others.

use crate::model_files::{files, stories};
use crate::support::{TestServer, data};
use golden::temp_models::{read, write};
use pellucid_models::{LoadOptions, forecast};
use pellucid_server::{Limits, ModelFiles, Server, ServerOptions};
use serde_json::{Value, json};
use std::io::BufRead;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const PATH: &str = "/v1/completions";

/// Two models, `a` (the built-in one) and `b` (the same without an MLP), and memory for either but
/// not both.
struct Two {
    a: TempDir,
    b: TempDir,
}

impl Two {
    fn new() -> Two {
        let (a, b) = (stories(), stories());
        let file = b.path().join("model.safetensors");
        let mut tensors = read(&file);
        let (_, _, bytes) = tensors.get_mut("model.layers.2.mlp.down_proj.weight").expect("a tensor");
        bytes.fill(0);
        write(&file, &tensors);
        Two { a, b }
    }

    fn files(&self) -> Vec<ModelFiles> {
        vec![files("a", self.a.path()), files("b", self.b.path())]
    }

    fn options(&self) -> ServerOptions {
        let bytes = forecast(Some(self.a.path()), &LoadOptions::default()).expect("a forecast").weight_bytes;
        let model_memory = Some(bytes + bytes / 2);
        let aliases = vec!["gpt=b".parse().expect("an alias")];
        ServerOptions { model_memory, aliases, ..ServerOptions::default() }
    }

    fn start(&self) -> TestServer {
        TestServer::of(self.files(), self.options())
    }
}

fn request(model: &str) -> Value {
    json!({"model": model, "prompt": [1, 5, 9, 2], "max_tokens": 5, "temperature": 0, "ignore_eos": true,
        "logprobs": 1, "return_token_ids": true})
}

fn choices(server: &TestServer, model: &str) -> Value {
    server.ok(PATH, &request(model))["choices"].clone()
}

/// Which of the listed names are loaded.
fn loaded(server: &TestServer) -> Vec<bool> {
    let (_, list) = server.get("/v1/models");
    list["data"].as_array().expect("a list").iter().map(|model| model["loaded"] == true).collect()
}

#[test]
fn models_take_turns_within_the_memory_and_keep_their_bits() {
    let two = Two::new();
    let server = two.start();
    assert_eq!(loaded(&server), [false, false, false], "a, b and the alias");
    let (_, ready) = server.get("/ready");
    assert_eq!((&ready["models"], &ready["loaded_models"]), (&json!(2), &json!(0)));
    let first = (choices(&server, "a"), choices(&server, "gpt"));
    assert_ne!(first.0, first.1);
    assert_eq!(loaded(&server), [false, true, true], "the alias loads its model");
    for _ in 0..2 {
        assert_eq!((choices(&server, "a"), choices(&server, "b")), first);
    }
    assert_eq!(server.metric("pellucid_model_loads_total"), 6.0);
    assert_eq!(server.metric("pellucid_model_unloads_total"), 5.0);
    assert_eq!(server.metric("pellucid_model_load_seconds_count"), 6.0);
    assert_eq!(server.metric("pellucid_model_loaded"), 1.0);
    let (_, b) = server.get("/v1/models/b");
    assert_eq!(server.metric("pellucid_model_bytes"), b["bytes"].as_f64().expect("bytes"));
    assert_eq!((&b["family"], &b["loaded"]), (&json!("llama"), &json!(true)));
    assert!(b["layers"].is_u64() && b["dtype"].is_string() && b["max_model_len"].is_u64(), "{b}");
    // Without a limit both stay.
    let server = TestServer::of(two.files(), ServerOptions::default());
    assert_eq!((choices(&server, "a"), choices(&server, "b")), first);
    assert_eq!(loaded(&server), [true, true]);
}

#[test]
fn concurrent_requests_share_a_load_and_wait_for_their_turn() {
    let two = Two::new();
    let server = two.start();
    let expected = [choices(&server, "b"), choices(&server, "a")];
    let loads = server.metric("pellucid_model_loads_total");
    std::thread::scope(|scope| {
        let ask = |_| scope.spawn(|| choices(&server, "b"));
        let clients: Vec<_> = (0..16).map(ask).collect();
        clients.into_iter().for_each(|client| assert_eq!(client.join().expect("an answer"), expected[0]));
    });
    assert_eq!(server.metric("pellucid_model_loads_total"), loads + 1.0, "16 requests share one load");
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|client| {
                let (server, name, expected) = (&server, ["b", "a"][client % 2], &expected[client % 2]);
                scope.spawn(move || (0..6).for_each(|_| assert_eq!(choices(server, name), *expected)))
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().expect("answers"));
    });
    assert_eq!(server.metric("pellucid_errors_total"), 0.0);
}

#[test]
fn a_model_in_use_is_not_unloaded() {
    let two = Two::new();
    let limits = Limits { load_wait: Duration::from_millis(50), ..Limits::default() };
    let server = TestServer::of(two.files(), ServerOptions { limits, ..two.options() });
    let long = json!({"model": "a", "prompt": "Once", "max_tokens": 200, "stream": true, "ignore_eos": true, "n": 32});
    let mut lines = server.open_stream(PATH, &long).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: "))).expect("an event").expect("read");
    let (status, busy) = server.post(PATH, &request("b"));
    assert_eq!((status, &busy["error"]["code"]), (503, &json!("models_busy")), "{busy}");
    assert!(busy["error"]["message"].as_str().is_some_and(|text| text.contains("`a` (")), "{busy}");
    // The model goes on for others.
    choices(&server, "a");
    let events: Vec<String> = lines.map_while(Result::ok).filter_map(data).collect();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    choices(&server, "b");
    assert_eq!(loaded(&server), [false, true, true]);
}

#[test]
fn a_client_that_disconnects_leaves_its_model_idle() {
    let two = Two::new();
    let server = two.start();
    let long = json!({"model": "a", "prompt": "Once", "max_tokens": 200, "stream": true, "ignore_eos": true, "n": 32});
    let mut lines = server.open_stream(PATH, &long).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: "))).expect("an event").expect("read");
    drop(lines);
    choices(&server, "b");
    assert!(server.metric("pellucid_generated_tokens_total") < 6400.0, "the stream did not run to its end");
}

#[test]
fn captures_outlive_their_model() {
    let two = Two::new();
    let server = two.start();
    let mut capturing = request("a");
    capturing["capture"] = json!(["layers.1.resid_post"]);
    let id = server.ok(PATH, &capturing)["captures"][0]["id"].as_str().expect("an id").to_owned();
    let path = format!("/v1/captures/{id}");
    let before = server.get(&path);
    choices(&server, "b");
    assert!(!loaded(&server)[0]);
    assert_eq!((server.get(&path), before.0), (before, 200));
}

#[test]
fn a_failed_load_is_an_error_of_its_own_requests() {
    let two = Two::new();
    let server = two.start();
    let expected = choices(&server, "b");
    let (from, to) = (two.a.path().join("model.safetensors"), two.a.path().join("elsewhere"));
    std::fs::rename(&from, &to).expect("renamed");
    let (status, answer) = server.post(PATH, &request("a"));
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_load_failed")), "{answer}");
    assert_eq!(answer["error"]["param"], "model");
    let directory = two.a.path().display().to_string();
    assert!(!answer.to_string().contains(&directory), "paths of the server stay in its log: {answer}");
    assert_eq!(choices(&server, "b"), expected);
    std::fs::rename(&to, &from).expect("renamed");
    choices(&server, "a");
}

#[test]
fn all_models_are_checked_before_the_server_starts() {
    let two = Two::new();
    let bind = |models: Vec<ModelFiles>, options: ServerOptions| {
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), ..options };
        Server::bind(models, options).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let absent = vec![files("a", two.a.path()), files("b", Path::new("/absent/model"))];
    assert!(bind(absent, ServerOptions::default()).contains("/absent/model"));
    let mut with_adapter = two.files();
    with_adapter[1].adapters.push(("x".into(), "/absent/adapter".into()));
    assert!(bind(with_adapter, ServerOptions::default()).contains("/absent/adapter"));
    let mut with_sae = two.files();
    with_sae[1].saes.push("/absent/sae@layers.2.resid_post".into());
    assert!(bind(with_sae, ServerOptions::default()).contains("/absent/sae"));
    let small = ServerOptions { model_memory: Some(1000), ..ServerOptions::default() };
    assert!(bind(two.files(), small).contains("more than the 1.0 kB for models"));
    assert_eq!(bind(two.files(), two.options()), "");
}

#[test]
fn the_first_model_can_be_loaded_before_the_server_runs() {
    let two = Two::new();
    let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), ..two.options() };
    let server = Server::bind(two.files(), options).expect("a server");
    let mut last = 0.0;
    server.preload(&mut |fraction| last = fraction).expect("it loads");
    assert_eq!(last, 1.0);
}
