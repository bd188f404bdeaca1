//! `/v1/completions` and `/v1/models`.

use crate::support::{TestServer, model};
use pellucid_engine::{Action, GenerateOptions, LogSoftmax, Plan, RunOptions, Tap};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[test]
fn greedy_text_is_that_of_the_library() {
    let (server, loaded) = (TestServer::shared(), model());
    let answer = server.ok(PATH, &json!({"prompt": "Tom saw a dog. The", "max_tokens": 12, "temperature": 0}));
    let prompt = loaded.encode("Tom saw a dog. The").unwrap();
    let options = GenerateOptions { max_new: 12, eos: loaded.eos.clone(), ..GenerateOptions::default() };
    let (inputs, stops) = ([prompt.clone()], Default::default());
    let generation = loaded.generate(&inputs, &Plan::default(), &options, &stops, &mut |_| {}).unwrap();
    assert_eq!(answer["choices"][0]["text"], loaded.text(&generation.rows[0].tokens, &stops).unwrap());
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": prompt.len(), "completion_tokens": 12,
        "total_tokens": prompt.len() + 12})
    );
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("stories")));
    assert!(answer.get("warnings").is_none() && answer["id"].as_str().unwrap().starts_with("cmpl-"));
}

#[test]
fn echoed_log_probabilities_are_those_of_a_plain_forward_bit_by_bit() {
    let (server, loaded) = (TestServer::shared(), model());
    let prompt = loaded.encode("Once upon a time, there was a little girl named Lily. She").unwrap();
    let request = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 2, "echo": true});
    let answer = server.ok(PATH, &request);
    let logprobs = &answer["choices"][0]["logprobs"];
    let run = loaded.model.run(
        std::slice::from_ref(&prompt),
        &Plan::of([Tap::new("logits", Action::Capture(None))]),
        &RunOptions::default(),
    );
    let run = run.unwrap();
    let logits = run.captures[0].array.values();
    let vocab = logits.len() / prompt.len();
    let found: Vec<Option<f64>> = serde_json::from_value(logprobs["token_logprobs"].clone()).unwrap();
    assert_eq!((found.len(), found[0]), (prompt.len() + 1, None), "prompt + 1 entries, the first null");
    for (position, line) in logits.chunks_exact(vocab).enumerate() {
        let softmax = LogSoftmax::of(line);
        let best = line.iter().position(|&logit| logit == softmax.best()).unwrap();
        // The last one is the greedy token.
        let token = prompt.get(position + 1).map_or(best, |&token| token as usize);
        assert_eq!(found[position + 1].map(f64::to_bits), Some(softmax.at(line[token]).to_bits()), "{position}");
        let top = logprobs["top_logprobs"][position + 1].as_object().unwrap();
        let largest = top.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert_eq!(largest.to_bits(), softmax.at(softmax.best()).to_bits());
        assert!((2..=3).contains(&top.len()), "the 2 best, and the token itself");
        assert!(top.contains_key(logprobs["tokens"][position + 1].as_str().unwrap()));
    }
    // The same under other forms of the request.
    let texts =
        server.ok(PATH, &json!({"prompt": [prompt, prompt[..5]], "max_tokens": 0, "logprobs": 0, "echo": true}));
    let none = &texts["choices"][0];
    let again: Vec<Option<f64>> = serde_json::from_value(none["logprobs"]["token_logprobs"].clone()).unwrap();
    assert_eq!(again, found[..prompt.len()], "`max_tokens: 0` has the prompt only");
    assert_eq!((&none["finish_reason"], &texts["usage"]["completion_tokens"]), (&json!("length"), &json!(0)));
    assert_eq!(none["logprobs"]["top_logprobs"][3].as_object().unwrap().len(), 1, "`logprobs: 0` has the token's own");
    assert_eq!(texts["choices"][1]["logprobs"]["tokens"].as_array().unwrap().len(), 5);
}

#[test]
fn offsets_count_characters_of_the_echoed_text() {
    let server = TestServer::shared();
    let text = "Tom saw a café — Ünïcode. The";
    let answer =
        server.ok(PATH, &json!({"prompt": text, "max_tokens": 4, "temperature": 0, "logprobs": 0, "echo": true}));
    let choice = &answer["choices"][0];
    let whole = choice["text"].as_str().unwrap();
    assert!(whole.starts_with(text) && whole.len() > text.len());
    let (tokens, offsets) = (&choice["logprobs"]["tokens"], &choice["logprobs"]["text_offset"]);
    let characters: Vec<char> = whole.chars().collect();
    let mut checked = 0;
    for (token, offset) in tokens.as_array().unwrap().iter().zip(offsets.as_array().unwrap()) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let rest: String = characters[offset..].iter().collect();
        // An incomplete character appears with the token after it.
        let rest = rest.trim_start_matches('\u{FFFD}');
        // Parts of characters are shown as bytes, and the first token may have a space before it.
        if token.is_ascii() && !token.starts_with('<') {
            assert!(rest.starts_with(token) || rest.starts_with(token.trim_start()), "{token:?} at {offset}");
            checked += 1;
        }
    }
    assert!(checked > 8, "{checked}");
}

#[test]
fn a_stream_has_the_pieces_of_the_whole_answer() {
    let server = TestServer::shared();
    for extra in [json!({}), json!({"n": 2, "temperature": 0.9, "seed": -7}), json!({"logprobs": 1, "echo": true})] {
        let mut request = json!({"prompt": ["One day, Tom", "Lily saw a"], "max_tokens": 10, "stop": ["park"]});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        request["seed"] = request.get("seed").cloned().unwrap_or(json!(3));
        let whole = server.ok(PATH, &request);
        request["stream"] = json!(true);
        request["stream_options"] = json!({"include_usage": true});
        let mut chunks = server.stream(PATH, &request);
        let last = chunks.pop().unwrap();
        assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
        for choice in whole["choices"].as_array().unwrap() {
            let of_choice = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
            let own: Vec<&Value> = of_choice.filter(|piece| piece["index"] == choice["index"]).collect();
            let text: String = own.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap());
            assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
            assert!(own[..own.len() - 1].iter().all(|piece| piece["finish_reason"].is_null()));
            if let Some(tokens) = choice["logprobs"]["tokens"].as_array() {
                let pieces = own.iter().flat_map(|piece| piece["logprobs"]["tokens"].as_array().unwrap());
                assert_eq!(pieces.collect::<Vec<_>>(), tokens.iter().collect::<Vec<_>>());
            }
        }
        assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == last["id"]));
    }
}

#[test]
fn choices_are_ordered_prompt_by_prompt_and_seeds_repeat() {
    let server = TestServer::shared();
    let texts = |prompt: Value, seed: Value| {
        let request = json!({"prompt": prompt, "n": 3, "max_tokens": 8, "temperature": 1, "seed": seed});
        let answer = server.ok(PATH, &request);
        let choices = answer["choices"].as_array().unwrap().clone();
        assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let both = texts(json!(["One day", "The cat"]), json!(-5));
    assert_eq!(both[..3], texts(json!("One day"), json!(-5)));
    assert_eq!(both[3..], texts(json!("The cat"), json!(-5)));
    assert_ne!(both, texts(json!(["One day", "The cat"]), json!(5)));
    assert!(both[0] != both[1] || both[1] != both[2], "choices differ");
}

#[test]
fn biases_and_penalties_change_the_choice() {
    let (server, loaded) = (TestServer::shared(), model());
    let ask = |extra: Value| {
        let mut request = json!({"prompt": "The dog", "max_tokens": 16, "temperature": 0, "return_token_ids": true});
        request.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = server.ok(PATH, &request);
        serde_json::from_value::<Vec<u32>>(answer["choices"][0]["token_ids"].clone()).unwrap()
    };
    let plain = ask(json!({}));
    let banned = ask(json!({"logit_bias": {plain[0].to_string(): -100}}));
    assert!(!banned.contains(&plain[0]));
    assert_eq!(ask(json!({"logit_bias": {plain[0].to_string(): 100}, "ignore_eos": true})), vec![plain[0]; 16]);
    let repeats = |tokens: &[u32]| {
        let mut distinct = tokens.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        tokens.len() - distinct.len()
    };
    let forced = json!({"logit_bias": {"5": 20.0}, "frequency_penalty": 2.0, "ignore_eos": true});
    assert!(repeats(&ask(forced)) < 15 && loaded.model.program().architecture().vocab > 5);
}

#[test]
fn prompt_logprobs_have_the_form_of_vllm() {
    let (server, loaded) = (TestServer::shared(), model());
    let prompt = loaded.encode("Tom saw a dog").unwrap();
    let answer = server.ok(PATH, &json!({"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 1, "temperature": 0}));
    let list = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((list.len(), &list[0]), (prompt.len(), &Value::Null));
    for (entry, token) in list.iter().zip(&prompt).skip(1) {
        let own = &entry[token.to_string()];
        assert!(own["logprob"].as_f64().unwrap() < 0.0 && own["rank"].as_u64().unwrap() >= 1, "{entry}");
        assert_eq!(own["decoded_token"], loaded.tokenizer.as_ref().unwrap().token_text(*token));
        assert!(entry.as_object().unwrap().values().any(|entry| entry["rank"] == 1));
    }
}

#[test]
fn models_and_aliases_are_listed_and_found() {
    let server = TestServer::shared();
    let (_, list) = server.get("/v1/models");
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("stories"), &json!("gpt-4o-mini")]);
    let (status, alias) = server.get("/v1/models/gpt-4o-mini");
    assert_eq!((status, &alias["root"], &alias["object"]), (200, &json!("stories"), &json!("model")));
    assert!(alias["created"].is_u64() && alias["owned_by"].is_string());
    let (status, unknown) = server.get("/v1/models/gpt-9");
    assert_eq!((status, &unknown["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(server.ok(PATH, &json!({"model": "gpt-4o-mini", "prompt": "a", "max_tokens": 1}))["model"], "stories");
}

#[test]
fn unknown_fields_are_ignored_and_listed() {
    let server = TestServer::shared();
    let request = json!({"prompt": "Tom", "max_tokens": 1, "user": "me", "metadata": {"a": 1}, "tempreture": 2});
    assert_eq!(server.ok(PATH, &request)["warnings"], json!(["unknown field `tempreture` was ignored"]));
}
