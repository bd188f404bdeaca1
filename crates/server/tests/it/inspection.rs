//! Plans, captures, steering and the routes that look into a model.

use crate::support::{TestServer, model};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pellucid_engine::{Plan, RunOptions};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

/// The floats of an array in JSON.
pub fn floats(array: &Value) -> Vec<f32> {
    let bytes = STANDARD.decode(array["data"].as_str().unwrap()).unwrap();
    assert_eq!(array["dtype"], "F32");
    bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

/// The body of a safetensors answer.
fn safetensors(server: &TestServer, method: &str, path: &str, body: &Value) -> Vec<u8> {
    let body = if method == "GET" { String::new() } else { body.to_string() };
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("http://{}{path}", server.address))
        .header("Content-Type", "application/json")
        .header("Accept", "application/vnd.safetensors")
        .body(body.into_bytes())
        .unwrap();
    let mut response = ureq::Agent::new_with_defaults().run(request).unwrap();
    assert_eq!(response.headers()["content-type"], "application/vnd.safetensors");
    response.body_mut().read_to_vec().unwrap()
}

/// The activations of a site in a plain run.
fn captured(tokens: &[u32], site: &str) -> Vec<f32> {
    let run = model().model.run(&[tokens.to_vec()], &Plan::capture([site]), &RunOptions::default()).unwrap();
    run.captures[0].array.values().to_vec()
}

#[test]
fn captures_of_a_completion_are_those_of_a_run() {
    let server = TestServer::shared();
    let request = json!({"prompt": "Tom saw a dog. The", "max_tokens": 5, "temperature": 0, "ignore_eos": true,
        "capture": ["layers.1.resid_post"], "return_token_ids": true});
    let answer = server.ok(PATH, &request);
    let ids = |key: &str| serde_json::from_value::<Vec<u32>>(answer["choices"][0][key].clone()).unwrap();
    let mut tokens = ids("prompt_token_ids");
    tokens.extend(&ids("token_ids")[..4]);
    let info = &answer["captures"][0];
    assert_eq!(info["tensors"][0]["name"], "layers.1.resid_post");
    assert_eq!(info["tensors"][0]["shape"][0], tokens.len(), "prompt + generated - 1 positions");
    let path = format!("/v1/captures/{}", info["id"].as_str().unwrap());
    let (status, stored) = server.get(&path);
    assert_eq!(status, 200);
    let expected = captured(&tokens, "layers.1.resid_post");
    assert_eq!(floats(&stored["tensors"][0]), expected);
    let file = safetensors(server, "GET", &path, &Value::Null);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("layers.1.resid_post").unwrap();
    let bytes: Vec<u8> = expected.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(tensor.data(), bytes);
    assert_eq!(server.send("DELETE", &path, &[], b"").0, 200);
    assert_eq!(server.get(&path).0, 404);
}

#[test]
fn streamed_captures_have_every_position_once() {
    let server = TestServer::shared();
    let request = json!({"prompt": "Tom saw a dog. The", "max_tokens": 6, "temperature": 0, "ignore_eos": true,
        "capture": ["layers.2.resid_post"], "stream": true, "stream_captures": true, "return_token_ids": true});
    let chunks = server.stream(PATH, &request);
    let lines = chunks.iter().flat_map(|chunk| chunk["capture_lines"].as_array().cloned().unwrap_or_default());
    let (mut positions, mut values) = (Vec::new(), Vec::new());
    for line in lines {
        positions.extend(serde_json::from_value::<Vec<usize>>(line["positions"].clone()).unwrap());
        values.extend(floats(&line));
    }
    let mut tokens: Vec<u32> = serde_json::from_value(chunks[0]["choices"][0]["prompt_token_ids"].clone()).unwrap();
    let generated = chunks.iter().filter_map(|chunk| chunk["choices"][0]["token_ids"].as_array());
    tokens.extend(generated.flatten().take(5).map(|id| id.as_u64().unwrap() as u32));
    assert_eq!(positions, (0..tokens.len()).collect::<Vec<_>>());
    assert_eq!(values, captured(&tokens, "layers.2.resid_post"));
    assert!(chunks.last().unwrap()["captures"][0]["id"].is_string());
}

#[test]
fn plans_and_steering_change_the_answer_of_their_own_request() {
    let server = TestServer::shared();
    let text = |extra: Value| {
        let mut request = json!({"prompt": "One day, Tom", "max_tokens": 8, "temperature": 0});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.ok(PATH, &request)["choices"][0]["text"].clone()
    };
    let plain = text(json!({}));
    let edit = json!({"plan": {"taps": [{"site": "layers.2.resid_post", "scale": 0.1}]}});
    let edited = text(edit.clone());
    assert_ne!(edited, plain);
    assert_eq!(text(json!({})), plain);
    let (status, error) = server.post("/v1/plans", &json!({"name": "wrong", "capture": ["layers.9.z"]}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("capture")), "{error}");
    server.ok("/v1/plans", &json!({"name": "weak", "plan": edit["plan"], "capture": ["layers.3.resid_post"]}));
    assert_eq!(text(json!({"plans": ["weak"]})), edited);
    assert_eq!(text(json!({})), plain);
    let (_, plan) = server.get("/v1/plans/weak");
    let id = plan["captures"][0].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/captures/{id}")).0, 200);
    assert_eq!(server.send("DELETE", "/v1/plans/weak", &[], b"").0, 200);
    assert_eq!(server.get(&format!("/v1/captures/{id}")).0, 404, "its captures are cleared");
}

#[test]
fn a_run_returns_arrays_and_explain_runs_nothing() {
    let server = TestServer::shared();
    let tokens = model().encode("Lily saw a bird").unwrap();
    let request = json!({"prompt": [tokens, tokens[..3]], "capture": ["layers.0.resid_post"]});
    let answer = server.ok("/v1/run", &request);
    assert_eq!(answer["tensors"][0]["name"], "0/layers.0.resid_post");
    assert_eq!(floats(&answer["tensors"][0]), captured(&tokens, "layers.0.resid_post"));
    assert_eq!(floats(&answer["tensors"][1]), captured(&tokens[..3], "layers.0.resid_post"));
    let file = safetensors(server, "POST", "/v1/run", &request);
    assert_eq!(SafeTensors::deserialize(&file).unwrap().len(), 2);
    let half = server.ok("/v1/run", &json!({"prompt": "a", "capture": ["embed"], "capture_dtype": "bf16"}));
    assert_eq!(half["tensors"][0]["dtype"], "BF16");
    let cost = server.ok("/v1/explain", &request);
    let width = answer["tensors"][0]["shape"][1].as_u64().unwrap() as usize;
    assert_eq!(cost["explanation"]["capture_bytes"], (tokens.len() + 3) * width * 4);
    let (status, error) = server.post("/v1/run", &json!({"prompt": "a", "capture": ["layers.99.resid_post"]}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("plan")), "{error}");
}

#[test]
fn projections_are_inner_products() {
    let server = TestServer::shared();
    let tokens = model().encode("Lily saw").unwrap();
    let stream = captured(&tokens, "layers.1.resid_post");
    let width = stream.len() / tokens.len();
    let direction = |at: usize| (0..width).map(|i| if i == at { 2.0 } else { 0.0 }).collect::<Vec<f32>>();
    let request = json!({"prompt": tokens, "site": "layers.1.resid_post", "directions": [direction(0), direction(5)],
        "bias": [1.0, 0.0]});
    let found = floats(&server.ok("/v1/project", &request)["tensors"][0]);
    let expected = stream.chunks_exact(width).flat_map(|line| [2.0 * line[0] + 1.0, 2.0 * line[5]]);
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "{found} {expected}");
    }
    assert_eq!(found.len(), 2 * tokens.len());
    let narrow = json!({"prompt": tokens, "site": "layers.1.resid_post", "directions": [[1.0]]});
    let (status, error) = server.post("/v1/project", &narrow);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("directions")), "{error}");
}

#[test]
fn branches_have_the_bits_of_separate_runs() {
    let server = TestServer::shared();
    let branch = |scale: f64| json!({"taps": [{"site": "layers.1.resid_post", "positions": [2], "scale": scale}]});
    let plans: Vec<Value> = (0..40).map(|number| branch(f64::from(number) / 8.0)).collect();
    let capture = json!([{"site": "logits", "positions": "last"}]);
    let request = json!({"prompt": "Tom saw a dog", "branches": plans, "capture": capture});
    let events = server.stream("/v1/branches", &request);
    assert_eq!(events.len(), 40);
    for number in [0, 7, 39] {
        assert_eq!(events[number]["branch"], number);
        let alone = json!({"prompt": "Tom saw a dog", "plan": plans[number], "capture": capture});
        let alone = server.ok("/v1/run", &alone);
        assert_eq!(floats(&events[number]["tensors"][0]), floats(&alone["tensors"][0]));
    }
    let (status, error) = server.post("/v1/branches", &json!({"prompt": "a", "branches": [{"taps": []}, {"taps": 1}]}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("branches[1]")));
}

#[test]
fn sites_and_the_lens_describe_the_model() {
    let server = TestServer::shared();
    let (_, list) = server.get("/v1/sites");
    let sites = list["sites"].as_array().unwrap();
    assert_eq!(sites.len(), model().model.program().sites().count());
    assert!(sites.iter().any(|site| site["site"] == "layers.0.resid_post" && site["shape"][0] == "tokens"));
    let lens = server.ok("/v1/lens", &json!({"prompt": "Tom saw a"}));
    let rows = lens["rows"].as_array().unwrap();
    assert_eq!(rows.last().unwrap()["site"], "logits");
    assert_eq!(server.get("/v1/sites?model=absent").0, 404);
    assert_eq!(server.get("/v1/sites?model=a&model=b").0, 400);
}

#[test]
fn tokens_are_encoded_decoded_and_located() {
    let (server, loaded) = (TestServer::shared(), model());
    let answer =
        server.ok("/tokenize", &json!({"prompt": "Tom saw", "add_special_tokens": false, "return_token_strs": true}));
    let tokens = loaded.tokenizer().unwrap().encode("Tom saw", false).unwrap();
    assert_eq!((&answer["tokens"], &answer["count"]), (&json!(tokens), &json!(tokens.len())));
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), tokens.len());
    let text = server.ok("/detokenize", &json!({"tokens": tokens}))["prompt"].clone();
    assert_eq!(text.as_str().unwrap().trim(), "Tom saw");
    let (_, info) = server.get("/tokenizer_info");
    assert!(info["eos_token"].is_string() && info["chat_template"].as_str().unwrap().contains("messages"), "{info}");
    let chat = json!([{"role": "user", "content": "Tom saw a dog."}, {"role": "assistant", "content": "It ran."}]);
    let answer = server.ok("/tokenize", &json!({"messages": chat}));
    let spans = &answer["spans"];
    assert_eq!(spans["messages"][1]["role"], "assistant");
    let content = &spans["messages"][0]["content"];
    let ids: Vec<u32> = serde_json::from_value(answer["tokens"].clone()).unwrap();
    let range = content["start"].as_u64().unwrap() as usize..content["end"].as_u64().unwrap() as usize;
    assert!(loaded.tokenizer().unwrap().decode(&ids[range], false).contains("Tom saw a dog."));
}

#[test]
fn embeddings_are_the_mean_or_last_of_a_site() {
    let server = TestServer::shared();
    let tokens = model().encode("Tom saw a dog").unwrap();
    let stream = captured(&tokens, "layers.1.resid_post");
    let width = stream.len() / tokens.len();
    let ask = |extra: Value| {
        let mut request = json!({"input": "Tom saw a dog", "site": "layers.1.resid_post", "normalize": false});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.ok("/v1/embeddings", &request)
    };
    let last = ask(json!({"pooling": "last"}));
    let values: Vec<f32> = serde_json::from_value(last["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(values, stream[stream.len() - width..]);
    assert_eq!(last["usage"]["prompt_tokens"], tokens.len());
    let coded = ask(json!({"pooling": "last", "encoding_format": "base64"}));
    let bytes = STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    assert_eq!(bytes, values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let mean: Vec<f32> = serde_json::from_value(ask(json!({}))["data"][0]["embedding"].clone()).unwrap();
    let first = (0..tokens.len()).map(|row| stream[row * width]).sum::<f32>() / tokens.len() as f32;
    assert!((mean[0] - first).abs() < 1e-4 * first.abs().max(1.0));
    let unit = server.ok("/v1/embeddings", &json!({"input": ["a", "b"], "model": "gpt-4o-mini"}));
    assert_eq!(unit["data"].as_array().unwrap().len(), 2);
    let values: Vec<f32> = serde_json::from_value(unit["data"][1]["embedding"].clone()).unwrap();
    assert!((values.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
    let (status, error) = server.post("/v1/embeddings", &json!({"input": "a", "dimensions": 8}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("dimensions")));
}
