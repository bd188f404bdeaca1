//! Bad requests: the documented status, and an error that names the field.

use crate::support::TestServer;
use pellucid_server::{Limits, ServerOptions};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn errors_name_the_field() {
    let server = TestServer::shared();
    let user = json!([{"role": "user", "content": "a"}]);
    let completions = [
        (json!({}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt"),
        (json!({"prompt": "a", "temperature": "hot"}), "temperature"),
        (json!({"prompt": "a", "temperature": 2.5}), "temperature"),
        (json!({"prompt": "a", "top_p": 0}), "top_p"),
        (json!({"prompt": "a", "presence_penalty": -3}), "presence_penalty"),
        (json!({"prompt": "a", "max_tokens": -1}), "max_tokens"),
        (json!({"prompt": "a", "max_tokens": 100000}), "max_tokens"),
        (json!({"prompt": "a", "n": 0}), "n"),
        (json!({"prompt": "a", "n": 1000}), "n"),
        (json!({"prompt": "a", "logprobs": 5000}), "logprobs"),
        (json!({"prompt": "a", "logit_bias": {"foo": 0}}), "logit_bias"),
        (json!({"prompt": "a", "logit_bias": {"5": 101}}), "logit_bias"),
        (json!({"prompt": "a", "stop": ""}), "stop"),
        (json!({"prompt": "a", "stop": 5}), "stop"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "capture": ["embed"], "stream_captures": true}), "stream_captures"),
        (json!({"prompt": "a", "stop_token_ids": [4_000_000_000_u32]}), "stop_token_ids"),
        (json!({"prompt": "a", "stop_token_ids": [-1]}), "stop_token_ids[0]"),
        (json!({"prompt": "a", "logit_bias": {"4000000000": 1}}), "logit_bias"),
        (json!({"prompt": "a", "prompt_lookup": 1_000_000}), "prompt_lookup"),
        (json!({"prompt": "a", "seed": 1e30}), "seed"),
        (json!({"prompt": "a", "top_k": -2}), "top_k"),
        (json!({"prompt": "a", "min_p": 1.5}), "min_p"),
        (json!({"prompt": "a", "repetition_penalty": 0}), "repetition_penalty"),
        (json!({"prompt": vec!["a"; 1025]}), "prompt"),
        (json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        (json!({"prompt": "a", "best_of": 3}), "best_of"),
        (json!({"prompt": "a", "stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"prompt": "a", "response_format": {"type": "json_object"}}), "response_format"),
        (json!({"prompt": "a", "plan": {"taps": [{"site": "layers.0.resid_post", "add": "../../etc/x#y"}]}}), "plan"),
        (json!({"prompt": "a", "plan": "/etc/passwd"}), "plan"),
        (json!({"prompt": "a", "plan": {"taps": 5}}), "plan"),
        (json!({"prompt": "a", "steer": "happy.safetensors"}), "steer"),
        (json!({"prompt": "a", "capture": [5]}), "capture"),
        (json!({"prompt": "a", "plans": ["absent"]}), "plans"),
        (json!({"prompt": "a", "adapter": "lora"}), "adapter"),
        (json!({"prompt": "a", "adapter": 5}), "adapter"),
    ];
    let chats = [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}), "messages"),
        (json!({"messages": user, "top_logprobs": 2}), "top_logprobs"),
        (json!({"messages": user, "tools": [{"type": "function"}]}), "tools"),
        (json!({"messages": user, "functions": [{}]}), "functions"),
        (json!({"messages": user, "modalities": ["audio"]}), "modalities"),
        (json!({"messages": user, "max_completion_tokens": 1000000}), "max_completion_tokens"),
    ];
    let cases = completions.map(|case| ("/v1/completions", case)).into_iter();
    for (path, (request, param)) in cases.chain(chats.map(|case| ("/v1/chat/completions", case))) {
        let (status, answer) = server.post(path, &request);
        let is_absent = param == "plans" || request["adapter"].is_string();
        let expected = if is_absent { 404 } else { 400 };
        assert_eq!((status, answer["error"]["param"].as_str()), (expected, Some(param)), "{request}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
    }
    let (status, answer) = server.post("/v1/completions", &json!({"model": "gpt-9", "prompt": "a"}));
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
    // The built-in model has 4096 tokens at most, so this id is in no vocabulary.
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": [4_000_000_000_u32]}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("prompt")));
    // The others are unharmed.
    server.ok("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
}

#[test]
fn every_error_has_the_shape_of_the_api() {
    let server = TestServer::shared();
    let json = [("Content-Type", "application/json")];
    /// Method, path, headers, body, and the status of the answer.
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [u8], u16);
    let cases: [Case; 11] = [
        ("GET", "/v1/nothing", &[], b"", 404),
        ("GET", "/v1/../etc/passwd", &[], b"", 404),
        ("GET", "/v1/captures/..%2f..%2fetc%2fpasswd", &[], b"", 404),
        ("GET", "/v1/models/../../etc/passwd", &[], b"", 404),
        ("DELETE", "/v1/completions", &[], b"", 405),
        ("POST", "/health", &json, b"{}", 405),
        ("POST", "/v1/completions", &[("Content-Type", "text/plain")], b"{\"prompt\": \"a\"}", 415),
        ("POST", "/v1/completions", &[], b"{\"prompt\": \"a\"}", 415),
        ("POST", "/v1/completions", &json, b"{\"prompt\": ", 400),
        ("POST", "/v1/completions", &json, b"{\"prompt\": \"a\", \"prompt\": \"b\"}", 400),
        ("POST", "/v1/run", &json, b"{\"prompt\": \"a\", \"plan\": {\"taps\": [], \"taps\": []}}", 400),
    ];
    for (method, path, headers, body, expected) in cases {
        let (status, answer) = server.send(method, path, headers, body);
        assert_eq!(status, expected, "{method} {path}: {answer}");
        let error = answer["error"].as_object().unwrap();
        assert!(["message", "type", "param", "code"].iter().all(|key| error.contains_key(*key)), "{answer}");
    }
}

#[test]
fn a_large_body_is_refused_before_it_arrives() {
    let limits = Limits { body_bytes: 1000, read_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = TestServer::start(ServerOptions { limits, ..ServerOptions::default() });
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let started = Instant::now();
    let answer = server.raw(format!("{head}Content-Length: 1000000000\r\n\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(2));
    let chunk = "a".repeat(2000);
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n7d0\r\n{chunk}\r\n0\r\n\r\n");
    assert!(server.raw(chunked.as_bytes()).starts_with("HTTP/1.1 413"));
}

#[test]
fn slow_headers_and_bodies_end_in_time() {
    let limits = Limits { read_timeout: Duration::from_millis(300), ..Limits::default() };
    let server = TestServer::start(ServerOptions { limits, ..ServerOptions::default() });
    let started = Instant::now();
    server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: loc");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let answer = server.raw(format!("{head}Content-Length: 50\r\n\r\n{{\"prompt\"").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_timeout"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn idle_connections_do_not_lock_others_out() {
    let limits = Limits { read_timeout: Duration::from_millis(500), connections: 40, ..Limits::default() };
    let server = TestServer::start(ServerOptions { limits, ..ServerOptions::default() });
    // More than the server takes at once: the others wait until it closes the idle ones.
    let idle: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(server.address).expect("a connection")).collect();
    assert_eq!(server.get("/health").0, 200);
    drop(idle);
    server.ok("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
}

#[test]
fn garbage_harms_no_other_request() {
    let server = TestServer::shared();
    for bytes in
        [&b"\x00\x01\x02\xff\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n"]
    {
        let answer = server.raw(bytes);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let piped = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGARBAGE\r\n\r\n";
    assert!(server.raw(piped).starts_with("HTTP/1.1 200"));
    assert_eq!(server.get("/health").0, 200);
}

#[test]
fn deep_and_random_json_is_never_a_fault() {
    let server = TestServer::shared();
    let deep = "[".repeat(100_000);
    let (status, _) = server.send("POST", "/v1/completions", &[("Content-Type", "application/json")], deep.as_bytes());
    assert_eq!(status, 400);
    let values =
        [Value::Null, json!(true), json!(-1e300), json!("\u{0}"), json!([[]]), json!({"a": {}}), json!([null])];
    let keys = ["prompt", "messages", "model", "stop", "plan", "capture", "steer", "n", "seed", "logit_bias", "stream"];
    for path in ["/v1/completions", "/v1/chat/completions"] {
        for key in keys {
            for value in &values {
                let mut request =
                    json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
                request[key] = value.clone();
                let (status, answer) = server.post(path, &request);
                assert!(status < 500, "{path} {request}: {answer}");
            }
        }
    }
}
