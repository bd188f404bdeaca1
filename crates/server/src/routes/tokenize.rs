//! `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them and lm-eval asks for them,
//! with the spans of messages.

use super::direct::InputFields;
use super::sites::ModelQuery;
use super::{Reply, blocking};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source, whole_body};
use crate::extract::QueryParams;
use crate::generation::{PromptField, encode_chat, token_text};
use crate::state::AppState;
use axum::extract::State;
use pellucid_models::chat::{ChatOptions, ChatSpans};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A request of `/tokenize`: `prompt` or `messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    #[serde(flatten)]
    input: InputFields,
    #[serde(flatten)]
    options: TokenizeOptions,
}

/// Options of `/tokenize`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct TokenizeOptions {
    /// Also return the text of each token.
    return_token_strs: Option<bool>,
    /// Append the start of an assistant turn; the default.
    add_generation_prompt: Option<bool>,
    /// End after the text of the final message.
    continue_final_message: Option<bool>,
    /// Variables of the chat template.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
}

impl RequestBody for TokenizeRequest {
    fn read(source: &Source) -> ApiResult<TokenizeRequest> {
        Ok(TokenizeRequest { input: source.part()?, options: source.part()? })
    }
}

/// The tokens of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizeResult {
    /// Number of tokens.
    count: usize,
    /// Most positions of a row.
    max_model_len: Option<usize>,
    /// Token ids; for a list of prompts those of the first one.
    tokens: Vec<u32>,
    /// The text of each token.
    token_strs: Option<Vec<String>>,
    /// The rendered text of a chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// For a chat the tokens of each message: header, content and footer, and the generation
    /// prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    spans: Option<ChatSpans>,
    /// Why a chat has no spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    spans_error: Option<String>,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Encode a text or a conversation; for a conversation also locate its messages.
#[utoipa::path(
    post, path = "/tokenize", request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeResult), (status = "default", body = ErrorBody))
)]
pub async fn tokenize(
    State(state): State<AppState>,
    Json { value: TokenizeRequest { input, options }, warnings }: Json<TokenizeRequest>,
) -> ApiResult<Reply<TokenizeResult>> {
    let model = input.acquire(&state).await?;
    blocking(move || {
        let (tokens, chat) = match (&input.prompt, &input.messages) {
            (None, Some(messages)) => {
                let continues = options.continue_final_message.unwrap_or(false);
                let chat = ChatOptions {
                    add_generation_prompt: options.add_generation_prompt.unwrap_or(!continues),
                    continue_final_message: continues,
                    template: None,
                    variables: options.chat_template_kwargs.unwrap_or_default(),
                };
                let prompt = encode_chat(&model.loaded, messages, chat)?;
                (prompt.tokens, prompt.chat)
            }
            // An empty text has no tokens, which is an answer here.
            (Some(PromptField::Text(text)), None) => {
                let tokenizer = model.loaded.tokenizer()?;
                (tokenizer.encode(text, input.add_special_tokens.unwrap_or(true))?, None)
            }
            _ => {
                let mut prompts = input.prompts(&state, &model)?;
                (prompts.swap_remove(0).tokens, None)
            }
        };
        let texts = || tokens.iter().map(|&token| token_text(&model.loaded, token)).collect();
        let (spans, spans_error) = match chat.as_ref().map(|chat| chat.spans()) {
            None => (None, None),
            Some(Ok(spans)) => (Some(spans.clone()), None),
            Some(Err(error)) => (None, Some(error.to_string())),
        };
        Ok(Reply(TokenizeResult {
            count: tokens.len(),
            max_model_len: model.context(),
            token_strs: options.return_token_strs.unwrap_or(false).then(texts),
            text: chat.map(|chat| chat.text),
            spans,
            spans_error,
            warnings,
            tokens,
        }))
    })
    .await
}

/// A request of `/detokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// The model, or an alias of it.
    model: Option<String>,
    /// Token ids.
    tokens: Vec<u32>,
}

whole_body!(DetokenizeRequest);

/// A decoded text.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizeResult {
    /// The text, special tokens included.
    prompt: String,
}

/// Decode token ids.
#[utoipa::path(
    post, path = "/detokenize", request_body = DetokenizeRequest,
    responses((status = 200, body = DetokenizeResult), (status = "default", body = ErrorBody))
)]
pub async fn detokenize(
    State(state): State<AppState>,
    Json { value: DetokenizeRequest { model, tokens }, .. }: Json<DetokenizeRequest>,
) -> ApiResult<Reply<DetokenizeResult>> {
    let model = state.models.acquire(model.as_deref(), None).await?;
    blocking(move || {
        let vocab = model.loaded.model.program().architecture().vocab;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(ApiError::field("tokens", format!("token {token} is not among the {vocab} of the vocabulary")));
        }
        Ok(Reply(DetokenizeResult { prompt: model.loaded.tokenizer()?.decode(&tokens, false) }))
    })
    .await
}

/// A tokenizer.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizerInfo {
    /// `Tokenizer`.
    tokenizer_class: &'static str,
    /// Tokens of the vocabulary, added ones included.
    vocab_size: usize,
    /// Most positions of a row.
    model_max_length: Option<usize>,
    /// Whether texts get a beginning-of-text token.
    add_bos_token: bool,
    /// Beginning of text.
    bos_token: Option<String>,
    /// End of text.
    eos_token: Option<String>,
    /// Padding; the server never pads.
    pad_token: Option<String>,
    /// Unknown text.
    unk_token: Option<String>,
    /// The chat template.
    chat_template: Option<String>,
}

/// Describe the tokenizer of a model.
#[utoipa::path(
    get, path = "/tokenizer_info", params(ModelQuery),
    responses((status = 200, body = TokenizerInfo), (status = "default", body = ErrorBody))
)]
pub async fn info(
    State(state): State<AppState>,
    QueryParams(query): QueryParams<ModelQuery>,
) -> ApiResult<Reply<TokenizerInfo>> {
    let model = state.models.acquire(query.model.as_deref(), None).await?;
    let tokenizer = model.loaded.tokenizer()?;
    let special = tokenizer.special();
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    Ok(Reply(TokenizerInfo {
        tokenizer_class: "Tokenizer",
        vocab_size: tokenizer.vocab_size(),
        model_max_length: model.context(),
        add_bos_token: tokenizer.adds_bos(),
        bos_token: text(special.bos),
        eos_token: text(special.eos.first().copied()),
        pad_token: text(special.pad),
        unk_token: text(special.unk),
        chat_template: model.loaded.chat.as_ref().map(|template| template.source().to_owned()),
    }))
}
