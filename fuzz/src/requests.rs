//! Target of requests: bodies of every POST route, in process, up to the answer of the built-in
//! model.
//!
//! No body may cause a panic or a status of 500 and above, and every error has the shape of the
//! OpenAI API. A field `route`, which the server ignores, selects the route; other inputs go to the
//! route that the bytes happen to select.

use pellucid_models::{LoadOptions, LoadedModel};
use pellucid_server::{Answer, InProcess, ModelEntry, ServerOptions};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::sync::OnceLock;

/// Every route that takes a body.
const ROUTES: [&str; 12] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
    "/v1/run",
    "/v1/explain",
    "/v1/project",
    "/v1/lens",
    "/v1/branches",
    "/v1/plans",
    "/mcp",
];

fn model() -> LoadedModel {
    static MODEL: OnceLock<LoadedModel> = OnceLock::new();
    let load = || {
        let mut loaded = LoadedModel::builtin(&LoadOptions::default()).expect("the built-in model");
        let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
        loaded.chat = Some(pellucid_models::chat::ChatTemplate::new(template, std::path::Path::new("t.jinja")));
        loaded
    };
    MODEL.get_or_init(load).clone()
}

/// A server with small limits, so that executions are short.
fn server() -> InProcess {
    let mut options = ServerOptions::default();
    options.limits.max_tokens = 3;
    options.limits.rows = 4;
    options.limits.capture_bytes = 16 << 20;
    options.limits.stored_bytes = 16 << 20;
    options.scheduler.max_rows = 4;
    InProcess::new(vec![ModelEntry { id: "stories".into(), loaded: model() }], options).expect("a server")
}

thread_local! {
    static SERVER: RefCell<Option<InProcess>> = const { RefCell::new(None) };
}

fn route(data: &[u8]) -> &'static str {
    let quoted = |route: &str| format!("\"{route}\"").into_bytes();
    let named = ROUTES.iter().find(|route| data.windows(route.len() + 2).any(|part| part == quoted(route)));
    named.unwrap_or(&ROUTES[data.iter().map(|&byte| usize::from(byte)).sum::<usize>() % ROUTES.len()])
}

/// Posts a body and checks the answer.
pub fn post(data: &[u8]) {
    let route = route(data);
    let answer = SERVER.with_borrow_mut(|server| {
        let answer = server.get_or_insert_with(self::server).post(route, data.to_vec()).expect("an answer");
        // A standing plan would change the answers of later executions.
        if route == "/v1/plans" && answer.status < 300 {
            *server = None;
        }
        answer
    });
    check(route, &answer);
}

fn check(route: &str, Answer { status, content_type, body }: &Answer) {
    let text = String::from_utf8_lossy(body);
    assert!(*status < 500, "{route}: {status} {text}");
    // A stream has its errors in its events, and MCP in its results.
    assert!(!text.contains("\"server_error\"") && !text.contains("internal error"), "{route}: {text}");
    if *status >= 400 {
        let error: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &error["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{route}: {status} {text}");
        let is_shaped = error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some();
        assert!(is_shaped || route == "/mcp", "{route}: {status} {text}");
    } else if content_type.starts_with("application/json") {
        assert!(serde_json::from_slice::<Value>(body).is_ok(), "{route}: {text}");
    }
}

/// Requests that are answered with 200, with most fields.
pub fn seeds() -> Vec<Vec<u8>> {
    let plan = json!({"taps": [
        {"site": "layers.1.mlp_out", "positions": "last", "scale": 0.5},
        {"when": {"site": "layers.0.resid_post", "direction": vec![0.1; 128], "above": 0.5}, "mark": "m"},
        {"site": "layers.*.z", "heads": [0, 1], "capture": {"reduce": "norm"}}]});
    let add = json!({"type": "add", "vector": vec![0.1; 128], "scale": 4.0});
    let steer = json!({"layers": {"2": {"operations": [add]}}});
    let capture = json!(["layers.0-1.resid_post", {"site": "logits", "positions": "last"}]);
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "name": "Tom", "content": [{"type": "text", "text": "Hi"}]}]);
    let call = |tool: &str, arguments: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "route": "/mcp",
            "params": {"name": tool, "arguments": arguments}})
    };
    let bodies = [
        json!({"route": "/v1/completions", "prompt": ["Tom saw", "a"], "max_tokens": 2, "temperature": 0.5, "top_p": 0.9,
            "top_k": 5, "min_p": 0.1, "seed": -3, "n": 2, "stop": [".", "x"], "logit_bias": {"500": 1.5}, "logprobs": 2,
            "echo": true, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1,
            "prompt_logprobs": 1, "return_token_ids": true, "ignore_eos": true, "stop_token_ids": [3]}),
        json!({"route": "/v1/completions", "prompt": [5, 6, 7], "max_tokens": 1, "stream": true, "stream_captures": true,
            "stream_options": {"include_usage": true}, "plan": plan, "capture": capture, "capture_dtype": "bf16"}),
        json!({"route": "/v1/chat/completions", "messages": messages, "max_completion_tokens": 2, "logprobs": true,
            "top_logprobs": 2, "response_format": {"type": "text"}, "tool_choice": "none", "tools": [], "steer": steer}),
        json!({"route": "/v1/chat/completions", "messages": messages, "continue_final_message": true,
            "add_generation_prompt": false, "chat_template_kwargs": {"a": 1}, "max_tokens": 1, "stream": true}),
        json!({"route": "/v1/embeddings", "input": ["a", "b c"], "encoding_format": "base64", "site": "layers.2.resid_post",
            "pooling": "last", "normalize": false}),
        json!({"route": "/tokenize", "messages": messages, "return_token_strs": true}),
        json!({"route": "/tokenize", "prompt": "Tom saw a dog.", "add_special_tokens": false}),
        json!({"route": "/detokenize", "tokens": [1, 500, 481]}),
        json!({"route": "/v1/run", "prompt": [[5, 6, 7], [8, 9]], "plan": plan, "capture": capture, "steer": steer}),
        json!({"route": "/v1/run", "prompt": "Tom saw a dog", "plan": {"taps": [
            {"site": "logits", "positions": "last", "as": "l"}, {"site": "layers.2.resid_post", "grad": true}],
            "values": [{"name": "p", "index": {"of": {"log_softmax": "l"}, "picks": [0, 500]}},
                {"name": "loss", "across": {"of": {"neg": "p"}, "how": "mean"}}], "save": ["loss"], "metric": "loss"}}),
        json!({"route": "/v1/explain", "prompt": "Tom saw", "plan": plan, "capture": ["layers.*.attn_probs"]}),
        json!({"route": "/v1/project", "prompt": "Tom saw", "site": "layers.1.resid_post", "bias": [1, 2], "relu": true,
            "directions": [vec![0.5; 128], vec![-0.5; 128]]}),
        json!({"route": "/v1/lens", "prompt": "Tom saw", "plan": {"taps": [{"site": "layers.2.z", "zero": true}]}}),
        json!({"route": "/v1/branches", "prompt": "Tom saw", "capture": capture, "branches": [
            {"taps": [{"site": "layers.0.z", "heads": [1], "zero": true}]}, {"taps": [{"site": "layers.3", "skip": true}]}]}),
        json!({"route": "/v1/plans", "name": "a", "all": true, "plan": {"taps": [{"site": "layers.2.z", "zero": true}]},
            "capture": ["layers.0.z"]}),
        call("describe", json!({})),
        call("sites", json!({"pattern": "layers.*.z"})),
        call(
            "run",
            json!({"prompt": ["Tom saw", "a"], "plan": plan, "capture": capture, "top_k": 3, "max_values": 20}),
        ),
        call("explain", json!({"tokens": [[5, 6]], "capture": capture})),
        call(
            "generate",
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_new": 2, "temperature": 1, "seed": 3,
            "n": 2, "stop": ["."], "capture": capture, "steer": steer}),
        ),
        call("lens", json!({"prompt": "Tom saw", "positions": [-1, 0], "layers": [1, 2], "top": 2})),
        call(
            "sweep",
            json!({"prompt": "Tom saw a dog", "metric": {"token": " dog", "minus": 481, "of": "logit", "position": -1},
            "template": {"plan": {"taps": [{"site": "layers.{layer}.z", "heads": ["{head}"], "zero": true}]},
                "over": {"layer": [0, 2], "head": [0, 1]}}}),
        ),
    ];
    bodies.iter().map(|body| body.to_string().into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mutations of requests that are refused at once would test nothing.
    #[test]
    fn the_seeds_are_answered() {
        let server = server();
        for seed in seeds() {
            let answer = server.post(route(&seed), seed.clone()).expect("an answer");
            let (seed, text) = (String::from_utf8_lossy(&seed), String::from_utf8_lossy(&answer.body));
            assert_eq!(answer.status, 200, "{seed}: {text}");
            assert!(!text.contains("\"error\"") && !text.contains("\"isError\":true"), "{seed}: {text}");
            check(route(seed.as_bytes()), &answer);
        }
    }
}
