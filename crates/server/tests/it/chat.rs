//! `/v1/chat/completions`.

use crate::support::{TestServer, model};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn messages() -> Value {
    json!([{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Tom saw a dog.", "name": "Tim"}])
}

/// The tokens of a rendered prompt.
fn prompt_ids(request: Value) -> Vec<u32> {
    let mut request = request;
    for (key, value) in [("max_tokens", json!(1)), ("return_token_ids", json!(true)), ("temperature", json!(0))] {
        request[key] = value;
    }
    serde_json::from_value(TestServer::shared().ok(PATH, &request)["prompt_token_ids"].clone()).unwrap()
}

#[test]
fn a_chat_is_rendered_by_the_template_and_answered() {
    let (server, loaded) = (TestServer::shared(), model());
    let rendered = |text: &str| loaded.tokenizer().unwrap().encode(text, false).unwrap();
    let whole = rendered("<system>Be kind.\n<user Tim>Tom saw a dog.\n<assistant>");
    assert_eq!(prompt_ids(json!({"messages": messages()})), whole, "`developer` is `system` for this template");
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(prompt_ids(json!({"messages": parts})), rendered("<user>a\nb\n<assistant>"));
    let kwargs = json!({"messages": parts, "chat_template_kwargs": {"greeting": "Hi"}});
    assert_eq!(prompt_ids(kwargs), rendered("<user>a\nb\n<assistant>Hi"));
    let bare = json!({"messages": parts, "add_generation_prompt": false});
    assert_eq!(prompt_ids(bare), rendered("<user>a\nb\n"));
    let started = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "Once upon"}]);
    let continued = json!({"messages": started, "continue_final_message": true});
    assert_eq!(prompt_ids(continued), rendered("<user>a\n<assistant>Once upon"));

    let answer = server.ok(PATH, &json!({"messages": messages(), "max_completion_tokens": 6, "temperature": 0}));
    assert_eq!(answer["object"], "chat.completion");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["role"], &choice["message"]["refusal"]), (&json!("assistant"), &Value::Null));
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty() && choice["logprobs"].is_null());
    assert_eq!(answer["usage"]["prompt_tokens"], whole.len());
}

#[test]
fn chunks_start_with_the_role_and_end_with_the_reason() {
    let server = TestServer::shared();
    let mut request = json!({"messages": messages(), "max_tokens": 8, "seed": 1, "logprobs": true, "top_logprobs": 2});
    let whole = server.ok(PATH, &request);
    let choice = &whole["choices"][0];
    request["stream"] = json!(true);
    let chunks = server.stream(PATH, &request);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(deltas[0]["role"], "assistant");
    assert!(deltas[1..].iter().all(|delta| delta.get("role").is_none()));
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk.get("usage").is_none()));
    let entries = |choice: &Value| choice["logprobs"]["content"].as_array().unwrap().clone();
    let streamed: Vec<Value> = chunks.iter().flat_map(|chunk| entries(&chunk["choices"][0])).collect();
    assert_eq!(streamed, entries(choice));
    assert!(streamed.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2));
    assert!(streamed.iter().all(|entry| entry["bytes"].is_array() && entry["logprob"].as_f64().unwrap() <= 0.0));
}

#[test]
fn without_a_limit_a_chat_ends_within_the_context() {
    let server = TestServer::shared();
    let answer = server.ok(PATH, &json!({"messages": messages(), "logit_bias": {}, "temperature": 0}));
    let total = answer["usage"]["total_tokens"].as_u64().unwrap() as usize;
    let context = model().model.program().architecture().context.unwrap();
    assert!(total <= context + 1, "{total} of {context}");
}

#[test]
fn stored_chats_are_an_empty_page() {
    let (status, page) = TestServer::shared().get(PATH);
    assert_eq!((status, &page["data"], &page["has_more"]), (200, &json!([]), &json!(false)));
}
