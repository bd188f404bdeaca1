//! Many clients at once, clients that go away, and the shutdown.

use crate::support::{TestServer, data};
use pellucid_server::ServerOptions;
use serde_json::{Value, json};
use std::io::BufRead;
use std::time::{Duration, Instant};

const PATH: &str = "/v1/completions";

/// A request that differs from the others in prompt, length, sampling and plan.
fn request(number: usize) -> Value {
    let names = ["Tom", "Lily", "The dog", "One day, a cat", "Once upon a time"];
    let mut request = json!({
        "prompt": format!("{} saw {number} birds. Then", names[number % names.len()]),
        "max_tokens": 6 + number % 20, "temperature": (number % 3) as f64 * 0.5, "seed": number, "stream": true,
        "stream_options": {"include_usage": true},
    });
    if number % 4 == 1 {
        request["plan"] = json!({"taps": [{"site": "layers.1.resid_post", "scale": 0.8}]});
    }
    request
}

fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect()
}

/// Waits until a condition holds.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn streams_under_load_have_the_text_of_solo_runs() {
    let server = TestServer::start(ServerOptions::default());
    let solo: Vec<String> = (0..24).map(|number| text(&server.stream(PATH, &request(number)))).collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..48)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(client as u64 * 7 % 50));
                    if client % 5 == 4 {
                        // This client goes away after the first event.
                        let mut lines = server.open_stream(PATH, &request(client)).lines();
                        lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: ")));
                        return None;
                    }
                    Some(server.stream(PATH, &request(client % 24)))
                })
            })
            .collect();
        for (number, client) in clients.into_iter().enumerate() {
            let Some(events) = client.join().unwrap() else { continue };
            assert_eq!(text(&events), solo[number % 24], "request {number}");
        }
    });
    wait_for("all rows are free", || server.metric("pellucid_running_rows") == 0.0);
    assert_eq!(server.metric("pellucid_waiting_requests"), 0.0);
}

#[test]
fn a_client_that_disconnects_frees_its_rows() {
    let server = TestServer::start(ServerOptions::default());
    let long = json!({"prompt": "Once", "max_tokens": 200, "stream": true, "ignore_eos": true, "n": 32});
    let mut reader = server.open_stream(PATH, &long).lines();
    reader.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: "))).unwrap().unwrap();
    assert_eq!(server.metric("pellucid_running_rows"), 32.0);
    drop(reader);
    wait_for("its rows are free", || server.metric("pellucid_running_rows") == 0.0);
    let tokens = server.metric("pellucid_generated_tokens_total");
    assert!(tokens < 6400.0, "{tokens}: the request did not run to its end");
}

#[test]
fn a_shutdown_finishes_running_requests() {
    let server = TestServer::start(ServerOptions::default());
    let long = json!({"prompt": "Once", "max_tokens": 60, "stream": true, "ignore_eos": true, "temperature": 0});
    let mut lines = server.open_stream(PATH, &long).lines();
    lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: "))).unwrap().unwrap();
    server.begin_shutdown();
    let events: Vec<String> = lines.map_while(Result::ok).filter_map(data).collect();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert!(events[events.len() - 2].contains("\"length\""), "{events:?}");
    let address = server.address;
    server.join().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "no new connections");
}

#[test]
fn metrics_count_requests_tokens_and_errors() {
    let server = TestServer::start(ServerOptions::default());
    server.ok(PATH, &json!({"prompt": "Tom", "max_tokens": 5, "ignore_eos": true}));
    server.post(PATH, &json!({"prompt": 5}));
    assert_eq!(server.metric("pellucid_generated_tokens_total"), 5.0);
    assert_eq!(server.metric("pellucid_errors_total"), 1.0);
    assert_eq!(server.metric("pellucid_first_token_seconds_count"), 1.0);
    assert_eq!(server.metric("pellucid_between_tokens_seconds_count"), 4.0);
    assert!(server.metric("pellucid_requests_total") >= 2.0);
    assert_eq!(server.get("/ready").0, 200);
    let (status, api) = server.get("/openapi.json");
    assert_eq!(status, 200);
    let paths = api["paths"].as_object().unwrap();
    assert!(paths["/v1/completions"]["post"].is_object(), "{api}");
    // OpenAPI has no wildcards in paths: clients would not find the parameter.
    assert!(paths.contains_key("/v1/models/{id}") && !paths.keys().any(|path| path.contains('*')), "{paths:?}");
}
