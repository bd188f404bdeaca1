//! Log-probabilities in the forms of the API.

use super::run::PieceToken;
use pellucid_engine::TokenLogprobs;
use pellucid_models::LoadedModel;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Stands for -inf, which JSON does not have.
const LEAST: f64 = -9999.0;

fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { LEAST }
}

/// The text of a token; `token_id:N` without a tokenizer.
pub fn token_text(loaded: &LoadedModel, token: u32) -> String {
    loaded.tokenizer.as_ref().map_or_else(|| token_id(token), |tokenizer| tokenizer.token_text(token))
}

fn token_id(token: u32) -> String {
    format!("token_id:{token}")
}

/// Log-probabilities of `/v1/completions`.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The text of each token.
    pub tokens: Vec<String>,
    /// The log-probability of each token; null for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f64>>,
    /// The most likely tokens at each position and the token itself, by text. Of tokens with the
    /// same text, only the most likely has it as its key; the others have `token_id:N`.
    #[schema(value_type = Vec<Option<Object>>)]
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Characters of the text before each token.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds tokens, each with its `top` most likely ones.
    pub fn extend(&mut self, loaded: &LoadedModel, tokens: &[PieceToken], top: usize) {
        for PieceToken { token, offset, logprobs } in tokens {
            let (mut key, mut best) = (token_text(loaded, *token), None);
            if let Some(logprobs) = logprobs {
                let (own, map) = by_text(loaded, logprobs, top);
                (key, best) = (own, Some(map));
            }
            self.tokens.push(key);
            self.token_logprobs.push(logprobs.as_ref().map(|logprobs| finite(logprobs.logprob)));
            self.top_logprobs.push(best);
            self.text_offset.push(*offset);
        }
    }
}

/// The tokens of a position by distinct keys, and the key of the chosen token.
fn by_text(loaded: &LoadedModel, logprobs: &TokenLogprobs, top: usize) -> (String, Map<String, Value>) {
    let mut map = Map::new();
    let mut own = None;
    for (token, logprob) in candidates(logprobs, top) {
        let text = token_text(loaded, token);
        let key = if map.contains_key(&text) { token_id(token) } else { text };
        if token == logprobs.token {
            own = Some(key.clone());
        }
        map.insert(key, json!(finite(logprob)));
    }
    (own.unwrap_or_else(|| token_id(logprobs.token)), map)
}

/// The `top` most likely tokens, and the token itself if it is not among them.
fn candidates(logprobs: &TokenLogprobs, top: usize) -> Vec<(u32, f64)> {
    let mut candidates: Vec<(u32, f64)> = logprobs.top.iter().take(top).copied().collect();
    if candidates.iter().all(|(token, _)| *token != logprobs.token) {
        candidates.push((logprobs.token, logprobs.logprob));
    }
    candidates
}

/// Log-probabilities of `/v1/chat/completions`.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each token.
    pub content: Vec<ChatToken>,
    /// Always null.
    #[schema(value_type = Option<Vec<ChatToken>>)]
    pub refusal: Option<()>,
}

/// A token of a chat with its log-probability.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatToken {
    /// Its text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
    /// The most likely tokens at its position.
    pub top_logprobs: Vec<TopToken>,
}

/// One of the most likely tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TopToken {
    /// Its text.
    pub token: String,
    /// Its log-probability.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Option<Vec<u8>>,
}

impl ChatLogprobs {
    /// Adds tokens, each with its `top` most likely ones.
    pub fn extend(&mut self, loaded: &LoadedModel, tokens: &[PieceToken], top: usize) {
        let bytes = |token: u32| loaded.tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(token));
        for logprobs in tokens.iter().filter_map(|token| token.logprobs.as_ref()) {
            let of_top = |&(token, logprob): &(u32, f64)| TopToken {
                token: token_text(loaded, token),
                logprob: finite(logprob),
                bytes: bytes(token),
            };
            self.content.push(ChatToken {
                token: token_text(loaded, logprobs.token),
                logprob: finite(logprobs.logprob),
                bytes: bytes(logprobs.token),
                top_logprobs: logprobs.top.iter().take(top).map(of_top).collect(),
            });
        }
    }
}

/// Log-probabilities of a prompt in vLLM's form: null for the first token, then for each token an
/// object by token id.
pub type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// Writes the log-probabilities of a prompt, with the `top` most likely tokens each.
pub fn prompt_logprobs(loaded: &LoadedModel, prompt: &[TokenLogprobs], top: usize) -> PromptLogprobs {
    let of_token = |logprobs: &TokenLogprobs| {
        let rank_of = |place: usize, token: u32| if token == logprobs.token { logprobs.rank } else { place + 1 };
        let entry = |(place, (token, logprob)): (usize, (u32, f64))| {
            let rank = rank_of(place, token);
            let decoded = token_text(loaded, token);
            (token.to_string(), json!({ "logprob": finite(logprob), "rank": rank, "decoded_token": decoded }))
        };
        Some(candidates(logprobs, top).into_iter().enumerate().map(entry).collect())
    };
    std::iter::once(None).chain(prompt.iter().map(of_token)).collect()
}
