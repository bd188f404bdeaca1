//! `/mcp`: raw JSON-RPC over HTTP.

use crate::support::TestServer;
use pellucid_server::ServerOptions;
use serde_json::{Value, json};

const ACCEPT: &str = "application/json, text/event-stream";
const TOOLS: [&str; 7] = ["describe", "sites", "run", "explain", "generate", "lens", "sweep"];

fn send(server: &TestServer, body: &Value) -> (u16, Value) {
    let headers = [("Content-Type", "application/json"), ("Accept", ACCEPT)];
    server.send("POST", "/mcp", &headers, body.to_string().as_bytes())
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// The result of a request that the protocol accepts.
fn result(method: &str, params: Value) -> Value {
    let (status, answer) = send(TestServer::shared(), &request(method, params));
    assert_eq!(status, 200, "{answer}");
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

fn call(tool: &str, arguments: Value) -> Value {
    result("tools/call", json!({"name": tool, "arguments": arguments}))
}

/// The structured answer of a call that succeeds.
fn ok(tool: &str, arguments: Value) -> Value {
    let result = call(tool, arguments);
    assert_ne!(result["isError"], true, "{result}");
    result["structuredContent"].clone()
}

/// The text of a call that fails.
fn failure(tool: &str, arguments: Value) -> String {
    let result = call(tool, arguments);
    assert_eq!(result["isError"], true, "{result}");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

fn tools() -> Vec<Value> {
    result("tools/list", json!({}))["tools"].as_array().expect("tools").clone()
}

#[test]
fn a_client_can_initialize_and_ping() {
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let initialized = result("initialize", params);
    assert_eq!(initialized["serverInfo"]["name"], "pellucid");
    assert!(initialized["capabilities"]["tools"].is_object());
    assert!(initialized["instructions"].as_str().is_some_and(|text| TOOLS.iter().all(|tool| text.contains(tool))));
    assert_eq!(result("ping", json!({})), json!({}));
}

#[test]
fn every_tool_has_schemas_with_descriptions_and_an_example_that_works() {
    let tools = tools();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, TOOLS);
    for tool in &tools {
        let name = tool["name"].as_str().expect("a name");
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 60), "{name}");
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{name}");
            for (field, property) in tool[schema]["properties"].as_object().expect("properties") {
                assert!(property["description"].as_str().is_some_and(|text| !text.is_empty()), "{name}.{field}");
            }
        }
        let example = tool["inputSchema"]["examples"][0].clone();
        let result = call(name, example);
        assert_ne!(result["isError"], true, "{name}: {result}");
        assert!(result["content"][0]["text"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        let required = tool["outputSchema"]["required"].as_array().expect("required fields");
        let answer = result["structuredContent"].as_object().expect("an object");
        assert!(
            required.iter().all(|field| answer.contains_key(field.as_str().expect("a name"))),
            "{name}: {answer:?}"
        );
    }
}

#[test]
fn describe_and_sites_agree_on_shapes() {
    let model = ok("describe", json!({}));
    assert_eq!((&model["model"], &model["n_layers"], &model["d_model"]), (&json!("stories"), &json!(6), &json!(128)));
    assert!(model["models"].as_array().is_some_and(|names| names.contains(&json!("gpt-4o-mini"))));
    let heads = ok("sites", json!({"pattern": "layers.*.q"}));
    let expected = json!(["tokens", model["n_heads"], model["d_head"]]);
    assert_eq!((&heads["sites"][0]["site"], &heads["sites"][0]["shape"]), (&json!("layers.0-5.q"), &expected));
    // The name of a row is a pattern that finds the same row.
    let all = ok("sites", json!({}));
    for row in all["sites"].as_array().expect("rows") {
        let again = ok("sites", json!({"pattern": row["site"]}));
        assert_eq!(again["sites"][0]["shape"], row["shape"], "{row}");
    }
    // A part of a meaning is a pattern too.
    assert!(ok("sites", json!({"pattern": "residual"}))["sites"].as_array().is_some_and(|rows| !rows.is_empty()));
}

#[test]
fn run_summarizes_what_the_route_returns_whole() {
    let server = TestServer::shared();
    let capture = json!([{"site": "layers.2.resid_post", "positions": "last"}]);
    let plan = json!({"taps": [{"site": "layers.1.mlp_out", "scale": 0.5}]});
    let arguments = json!({"prompt": "Tom saw a dog. The", "capture": capture, "plan": plan, "max_values": 128});
    let run = ok("run", arguments);
    let whole = server.ok("/v1/run", &json!({"prompt": "Tom saw a dog. The", "capture": capture, "plan": plan}));
    assert_eq!(run["rows"][0]["ids"], whole["tokens"][0]);
    assert_eq!(
        (&run["results"][0]["name"], &run["results"][0]["shape"]),
        (&json!("layers.2.resid_post"), &json!([1, 128]))
    );
    use base64::Engine;
    let data = whole["tensors"][0]["data"].as_str().expect("base64");
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
    let floats: Vec<f32> =
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().expect("4 bytes"))).collect();
    let values: Vec<f32> = serde_json::from_value(run["results"][0]["values"].clone()).expect("values");
    assert_eq!(values, floats);
    let next = run["rows"][0]["next"].as_array().expect("tokens");
    assert_eq!(next.len(), 5);
    assert_eq!(next[0]["token"], " dog");
}

#[test]
fn answers_are_bounded_and_say_what_was_cut() {
    let run = ok(
        "run",
        json!({"prompt": "Tom saw a dog. The", "capture": ["layers.*.mlp_out", "layers.*.q"], "next_tokens": 0}),
    );
    assert!(run["cut"].as_array().is_some_and(|notes| !notes.is_empty()), "{run}");
    assert!(run["results"].as_array().expect("results").iter().all(|result| result["values"].is_null()));
    assert!(run.to_string().len() < 40_000);
    let long = "dog ".repeat(120);
    let lens = ok("lens", json!({"prompt": long, "positions": (0..120).collect::<Vec<_>>(), "top": 5}));
    assert!(lens["layers"].as_array().is_some_and(|layers| layers.len() == 7));
}

#[test]
fn generate_is_the_completion_of_the_route() {
    let arguments = json!({"prompt": "One day,", "max_new": 8, "capture": ["layers.0.resid_post"]});
    let generated = ok("generate", arguments);
    let body = json!({"prompt": "One day,", "max_tokens": 8, "temperature": 0});
    let completion = TestServer::shared().ok("/v1/completions", &body);
    assert_eq!(generated["continuations"][0]["text"], completion["choices"][0]["text"]);
    let positions = generated["captures"][0]["results"][0]["shape"][0].as_u64();
    let (prompt, new) = (generated["prompt_tokens"].as_u64(), generated["generated_tokens"].as_u64());
    assert_eq!(positions, Some(prompt.unwrap_or(0) + new.unwrap_or(0) - 1));
    let sampled =
        |seed: i64| ok("generate", json!({"prompt": "One day,", "max_new": 8, "temperature": 1, "seed": seed}));
    assert_eq!(sampled(3), sampled(3));
    let chat = ok("generate", json!({"messages": [{"role": "user", "content": "Hi"}], "max_new": 2}));
    assert_eq!(chat["generated_tokens"], 2);
}

#[test]
fn a_sweep_measures_what_separate_runs_measure() {
    let prompt = "Tom saw a dog. The";
    let template = json!({
        "plan": {"taps": [{"site": "layers.{layer}.mlp_out", "zero": true}]},
        "over": {"layer": [0, 1, 2, 3, 4, 5]}
    });
    let metric = json!({"token": " dog", "of": "probability"});
    let sweep = ok("sweep", json!({"prompt": prompt, "template": template, "metric": metric}));
    assert_eq!(sweep["results"].as_array().map(Vec::len), Some(6));
    let run = |plan: Value| {
        let run = ok("run", json!({"prompt": prompt, "plan": plan, "next_tokens": 50}));
        let next = run["rows"][0]["next"].as_array().expect("tokens").clone();
        next.iter().find(|token| token["token"] == " dog").and_then(|token| token["probability"].as_f64())
    };
    assert_eq!(sweep["baseline"].as_f64(), run(json!({"taps": []})));
    for layer in [0, 5] {
        let plan = json!({"taps": [{"site": format!("layers.{layer}.mlp_out"), "zero": true}]});
        if let Some(probability) = run(plan) {
            assert_eq!(sweep["results"][layer]["value"].as_f64(), Some(probability), "layer {layer}");
        }
        assert_eq!(sweep["results"][layer]["label"], format!("layer={layer}"));
    }
    let largest = sweep["largest"].as_array().expect("results");
    let magnitude = |result: &Value| result["change"].as_f64().expect("a change").abs();
    assert!(largest.windows(2).all(|pair| magnitude(&pair[0]) >= magnitude(&pair[1])));
}

#[test]
fn the_lens_ends_with_the_models_own_prediction() {
    let lens = ok("lens", json!({"prompt": "Tom saw a dog. The", "positions": [-1], "layers": [2]}));
    let layers = lens["layers"].as_array().expect("layers");
    let sites: Vec<&str> = layers.iter().filter_map(|layer| layer["site"].as_str()).collect();
    assert_eq!(sites, ["layers.0.resid_pre", "layers.2.resid_post", "logits"]);
    let cell = &layers[2]["cells"][0];
    assert_eq!((&cell["top"][0]["token"], &cell["position"]), (&json!(" dog"), &json!(5)));
}

#[test]
fn errors_name_the_argument_and_the_remedy() {
    let cases = [
        ("run", json!({"prompt": "a", "capture": ["layers.9.z"]}), "layers.9.z", "layers are 0 to 5"),
        ("run", json!({"prompt": "a", "capture": ["layers.0.zz"]}), "layers.0.zz", "`sites`"),
        ("run", json!({"prompt": "a", "captures": []}), "`captures`", "schema"),
        ("run", json!({}), "prompt", "`messages`"),
        ("run", json!({"prompt": 3}), "prompt", "a text or a list of texts"),
        ("run", json!({"prompt": "a", "tokens": [[1]]}), "tokens", "one of them"),
        ("run", json!({"tokens": [[99999]]}), "99999", "vocabulary"),
        ("run", json!({"prompt": "a", "top_k": 100}), "top_k", "at most 20"),
        ("run", json!({"prompt": "a", "model": "gpt-9"}), "gpt-9", "`describe`"),
        ("run", json!({"prompt": "a", "plan": "edit.json"}), "plan", "object"),
        (
            "run",
            json!({"prompt": "a", "plan": {"taps": [{"site": "embed", "set": "f.safetensors#x"}]}}),
            "f.safetensors",
            "no files",
        ),
        ("explain", json!({"prompt": "a", "plan": {"taps": [{"site": "embed"}]}}), "plan", "action"),
        ("generate", json!({"prompt": "a", "max_new": 100000}), "max_new", "limit"),
        ("generate", json!({"prompt": "a", "temperature": -1}), "temperature", "from 0"),
        ("lens", json!({"prompt": ["a", "b"]}), "prompt", "one prompt"),
        ("lens", json!({"prompt": "a", "positions": [7]}), "positions", "position 7"),
        ("lens", json!({"prompt": "a", "layers": [6]}), "layers", "0 to 5"),
        (
            "sweep",
            json!({"prompt": "a", "plans": [{}], "metric": {"token": "two words here"}}),
            "metric.token",
            "leading space",
        ),
        ("sweep", json!({"prompt": "a", "metric": {"token": " dog"}}), "plans", "template"),
        (
            "sweep",
            json!({"prompt": "a", "plans": [{"taps": []}, {"taps": [{"site": "layers.7.z", "zero": true}]}],
            "metric": {"token": " dog"}}),
            "plans[1]",
            "layers are 0 to 5",
        ),
        ("sites", json!({"pattern": "qqq"}), "pattern", "qqq"),
    ];
    for (tool, arguments, named, remedy) in cases {
        let text = failure(tool, arguments.clone());
        assert!(text.contains(named) && text.contains(remedy), "{tool} {arguments}: {text}");
        assert!(!text.contains("/v1/"), "{tool} {arguments}: {text}");
    }
}

#[test]
fn calls_outside_the_protocol_are_refused() {
    let server = TestServer::shared();
    let (status, answer) = send(server, &request("tools/call", json!({"name": "shell", "arguments": {}})));
    assert!(status < 500 && answer["error"]["message"].as_str().is_some_and(|text| text.contains("sweep")), "{answer}");
    let (status, answer) = send(server, &request("no/method", json!({})));
    assert!(status < 500 && answer["error"]["code"] == -32601, "{status} {answer}");
    for body in ["", "{", "[]", "3", "{\"jsonrpc\": \"2.0\"}"] {
        let headers = [("Content-Type", "application/json"), ("Accept", ACCEPT)];
        let (status, answer) = server.send("POST", "/mcp", &headers, body.as_bytes());
        assert!((400..500).contains(&status), "{body}: {status} {answer}");
        assert!(answer["error"]["message"].is_string(), "{body}: {answer}");
    }
    let (status, answer) = server.get("/mcp");
    assert_eq!((status, answer["error"]["type"].as_str()), (405, Some("invalid_request_error")));
    let (status, _) = server.send("POST", "/mcp", &[("Content-Type", "text/plain"), ("Accept", ACCEPT)], b"{}");
    assert_eq!(status, 415);
}

#[test]
fn the_route_has_the_checks_of_the_others() {
    let options = ServerOptions { token: Some("0123456789abcdef".into()), ..ServerOptions::default() };
    let server = TestServer::start(options);
    let body = request("tools/list", json!({})).to_string();
    let status = |extra: &[(&str, &str)]| {
        let mut headers = vec![("Content-Type", "application/json"), ("Accept", ACCEPT)];
        headers.extend(extra);
        server.send("POST", "/mcp", &headers, body.as_bytes()).0
    };
    let token = ("Authorization", "Bearer 0123456789abcdef");
    assert_eq!(status(&[token]), 200);
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[token, ("Host", "evil.example")]), 403);
    assert_eq!(status(&[token, ("Origin", "http://evil.example")]), 403);
    assert_eq!(status(&[token, ("Sec-Fetch-Site", "cross-site")]), 403);
}

#[test]
fn progress_is_reported_to_clients_that_ask() {
    let plans: Vec<Value> = (0..40).map(|_| json!({"taps": [{"site": "layers.0.z", "scale": 0.5}]})).collect();
    let arguments = json!({"prompt": "Tom saw a dog. The", "plans": plans, "metric": {"token": " dog"}});
    let params = json!({"name": "sweep", "arguments": arguments, "_meta": {"progressToken": "p"}});
    let (status, answer) = send(TestServer::shared(), &request("tools/call", params));
    assert_eq!(status, 200);
    let text = answer.as_str().expect("server-sent events");
    let events: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?.trim()).ok()).collect();
    let (last, reports) = events.split_last().expect("events");
    assert!(!reports.is_empty() && reports.iter().all(|report| report["method"] == "notifications/progress"), "{text}");
    assert!(last["result"]["structuredContent"]["results"].as_array().is_some_and(|results| results.len() == 40));
}

#[test]
fn a_closed_connection_interrupts_the_engine() {
    use std::io::Write;
    let server = TestServer::start(ServerOptions::default());
    // Alone this sweep takes much longer than the limit below.
    let template = json!({
        "plan": {"taps": [{"site": "layers.0.resid_pre", "positions": [0], "scale": 0.5}, {"site": "layers.{a}.z", "scale": 0.5},
            {"site": "layers.{b}.mlp_out", "scale": 0.9}, {"site": "layers.{c}.q", "positions": ["{d}"], "scale": 0.9}]},
        "over": {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2, 3, 4, 5], "c": [0, 1, 2, 3, 4, 5], "d": (0..18).collect::<Vec<_>>()}
    });
    let arguments = json!({"prompt": "dog ".repeat(230), "template": template, "metric": {"token": " dog"}});
    let body = request("tools/call", json!({"name": "sweep", "arguments": arguments})).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).expect("a connection");
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: {ACCEPT}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(stream);
    // Direct calls run one at a time, so this one waits for the end of the other.
    let started = std::time::Instant::now();
    server.ok("/v1/run", &json!({"prompt": "a", "capture": ["embed"]}));
    assert!(started.elapsed().as_secs() < 10, "the sweep went on for {:?}", started.elapsed());
}

#[test]
fn the_calls_of_the_guide_work() {
    let page = include_str!("../../../../docs/mcp.md");
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let calls: Vec<Value> = blocks.map(|block| serde_json::from_str(block).expect("JSON")).collect();
    let calls: Vec<&Value> = calls.iter().filter(|call| call["arguments"].is_object()).collect();
    for tool in TOOLS {
        assert!(calls.iter().any(|call| call["name"] == tool), "the guide has no call of {tool}");
    }
    for call in calls {
        let result = result("tools/call", call.clone());
        assert_ne!(result["isError"], true, "{call}: {result}");
    }
}
