//! `/v1/chat/completions`: continues a conversation.

use super::{Reply, blocking};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::generation::{
    Call, ChatLogprobs, ChatMessage, CommonFields, Event, FinishReason, FinishedCall, GenerationFields, Piece,
    PieceToken, PromptLogprobs, Usage, encode_chat, events, finish, prompt_logprobs, submit,
};
use crate::inspection::{Inspection, PlanFields};
use crate::registry::ModelUse;
use crate::state::AppState;
use crate::{ids, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use pellucid_models::chat::ChatOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::mpsc::Sender;
use utoipa::ToSchema;

/// A request of `/v1/chat/completions`.
/// `Deserialize` is only for the schema: [`RequestBody::read`] reads the parts one by one, so that
/// errors name the field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    #[serde(flatten)]
    own: ChatFields,
    #[serde(flatten)]
    common: CommonFields,
    #[serde(flatten)]
    plan: PlanFields,
}

/// The fields that only `/v1/chat/completions` has.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatFields {
    /// The conversation.
    #[schema(min_items = 1)]
    messages: Vec<ChatMessage>,
    /// Former name of `max_completion_tokens`.
    max_tokens: Option<usize>,
    /// New tokens; as many as the context and the server allow if absent.
    max_completion_tokens: Option<usize>,
    /// Return the log-probabilities of the generated tokens.
    logprobs: Option<bool>,
    /// The number of most likely tokens beside each token; needs `logprobs`.
    top_logprobs: Option<usize>,
    /// Append the start of an assistant turn; the default.
    add_generation_prompt: Option<bool>,
    /// Continue the text of the final message.
    continue_final_message: Option<bool>,
    /// Variables of the chat template, such as `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// A Jinja template to use instead of the model's.
    chat_template: Option<String>,
    #[serde(default)]
    functions: Option<Value>,
    #[serde(default)]
    function_call: Option<Value>,
    #[serde(default)]
    audio: Option<Value>,
    #[serde(default)]
    modalities: Option<Vec<String>>,
    #[serde(default)]
    web_search_options: Option<Value>,
}

impl RequestBody for ChatRequest {
    fn read(source: &Source) -> ApiResult<ChatRequest> {
        Ok(ChatRequest { own: source.part()?, common: source.part()?, plan: source.part()? })
    }
}

impl ChatRequest {
    fn check(&self) -> ApiResult<()> {
        let fields = &self.own;
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        let calls_none = fields.function_call.as_ref().is_some_and(|call| call == "none");
        if is_given(&fields.functions) && !calls_none {
            return Err(ApiError::refused("functions", "calls are not parsed; set `function_call` to \"none\""));
        }
        if is_given(&fields.function_call) && !calls_none {
            return Err(ApiError::refused("function_call", "only \"none\" is"));
        }
        if fields.modalities.as_ref().is_some_and(|list| list.iter().any(|modality| modality != "text")) {
            return Err(ApiError::refused("modalities", "only [\"text\"] is"));
        }
        if is_given(&fields.audio) && fields.modalities.is_none() {
            return Err(ApiError::refused("audio", "the answer is text"));
        }
        if is_given(&fields.web_search_options) {
            return Err(ApiError::refused("web_search_options", "the server does not search"));
        }
        if fields.top_logprobs.is_some() && fields.logprobs != Some(true) {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs: true`"));
        }
        if fields.continue_final_message == Some(true) && fields.add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other";
            return Err(ApiError::field("add_generation_prompt", message));
        }
        Ok(())
    }

    fn logprobs(&self) -> Option<usize> {
        self.own.logprobs.unwrap_or(false).then_some(self.own.top_logprobs.unwrap_or(0))
    }

    fn submit(&self, state: &AppState, model: ModelUse) -> ApiResult<Call> {
        self.check()?;
        let fields = &self.own;
        let continues = fields.continue_final_message.unwrap_or(false);
        let options = ChatOptions {
            add_generation_prompt: fields.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            template: fields.chat_template.clone(),
            variables: fields.chat_template_kwargs.clone().unwrap_or_default(),
        };
        let prompt = encode_chat(&model.loaded, &fields.messages, options)?;
        let (max_tokens, max_tokens_field) = match (fields.max_completion_tokens, fields.max_tokens) {
            (None, Some(count)) => (Some(count), "max_tokens"),
            (count, _) => (count, "max_completion_tokens"),
        };
        let (common, plan, logprobs) = (&self.common, &self.plan, self.logprobs());
        let fields = GenerationFields { common, plan, max_tokens, max_tokens_field, logprobs, echo: false };
        submit(state, model, vec![prompt], &fields)
    }
}

/// A chat completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    /// Its id.
    id: String,
    /// `chat.completion`, or `chat.completion.chunk` in a stream.
    object: &'static str,
    /// When it was made, in seconds since 1970.
    created: u64,
    /// The model.
    model: String,
    /// The version of the server.
    system_fingerprint: &'static str,
    /// The choices.
    choices: Vec<ChatChoice>,
    /// Numbers of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    usage: Option<Option<Usage>>,
    /// Log-probabilities of the prompt's tokens, with `prompt_logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
    /// The prompt's tokens, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    inspection: Inspection,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A choice of a chat completion: a `message`, or in a stream a `delta`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    /// Its number.
    index: usize,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<AnswerMessage>,
    /// A part of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta>,
    /// Log-probabilities, if they were asked for.
    logprobs: Option<ChatLogprobs>,
    /// Why it ended; null in chunks before the last.
    finish_reason: Option<FinishReason>,
    /// `condition` if a condition of the plan ended it.
    #[schema(value_type = Option<String>)]
    stop_reason: Option<&'static str>,
    /// Its tokens, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// An answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AnswerMessage {
    /// `assistant`.
    role: &'static str,
    /// The text.
    content: String,
    /// Always null.
    refusal: Option<String>,
}

/// A part of an answer.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct Delta {
    /// `assistant`, in the first chunk of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    role: Option<&'static str>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

/// What all objects of a response share.
struct Responder {
    id: String,
    created: u64,
    model: ModelUse,
    logprobs: Option<usize>,
    returns_ids: bool,
    warnings: Vec<String>,
}

impl Responder {
    fn object(&self, object: &'static str, choices: Vec<ChatChoice>, usage: Option<Option<Usage>>) -> ChatCompletion {
        ChatCompletion {
            id: self.id.clone(),
            object,
            created: self.created,
            model: self.model.id.clone(),
            system_fingerprint: concat!("pellucid-", env!("CARGO_PKG_VERSION")),
            choices,
            usage,
            prompt_logprobs: None,
            prompt_token_ids: None,
            inspection: Inspection::default(),
            warnings: Vec::new(),
        }
    }

    fn choice(&self, index: usize, tokens: &[PieceToken]) -> ChatChoice {
        let mut logprobs = self.logprobs.map(|_| ChatLogprobs::default());
        if let Some(logprobs) = &mut logprobs {
            logprobs.extend(&self.model.loaded, tokens, self.logprobs.unwrap_or(0));
        }
        let token_ids = || tokens.iter().map(|token| token.token).collect();
        ChatChoice {
            index,
            message: None,
            delta: None,
            logprobs,
            finish_reason: None,
            stop_reason: None,
            token_ids: self.returns_ids.then(token_ids),
        }
    }

    /// The response of a call that has ended.
    fn whole(self, prompt_tokens: usize, finished: FinishedCall) -> ChatCompletion {
        let FinishedCall { choices, runs, generated, inspection } = finished;
        let choices = choices.into_iter().enumerate().map(|(index, choice)| ChatChoice {
            message: Some(AnswerMessage { role: "assistant", content: choice.text, refusal: None }),
            finish_reason: choice.finish,
            stop_reason: choice.stop_reason,
            ..self.choice(index, &choice.tokens)
        });
        let usage = Some(Some(Usage::new(prompt_tokens, generated)));
        let object = self.object("chat.completion", choices.collect(), usage);
        let run = runs.first();
        let top = run.and_then(|run| run.context.prompt_logprobs);
        ChatCompletion {
            prompt_logprobs: run
                .zip(top)
                .map(|(run, top)| prompt_logprobs(&self.model.loaded, &run.prompt_logprobs(), top)),
            prompt_token_ids: run.filter(|_| self.returns_ids).map(|run| run.context.prompt.tokens.clone()),
            inspection,
            warnings: self.warnings,
            ..object
        }
    }
}

/// Continue a conversation.
#[utoipa::path(
    post, path = "/v1/chat/completions", request_body = ChatRequest,
    responses((status = 200, body = ChatCompletion), (status = "default", body = ErrorBody))
)]
pub async fn create(
    State(state): State<AppState>,
    Json { value: request, warnings }: Json<ChatRequest>,
) -> ApiResult<Response> {
    let (streams, includes_usage) = (request.common.streams()?, request.common.includes_usage());
    let returns_ids = request.common.return_token_ids.unwrap_or(false);
    let (logprobs, standing) = (request.logprobs(), request.plan.plans.clone().unwrap_or_default());
    let model = state.models.acquire(request.common.model.as_deref(), request.common.adapter.as_deref()).await?;
    let own = state.clone();
    let call = blocking(move || request.submit(&own, model)).await?;
    let (id, created, model) = (ids::new("chatcmpl"), ids::unix_time(), call.model.clone());
    let responder = Responder { id, created, model, logprobs, returns_ids, warnings };
    if !streams {
        let prompt_tokens = call.prompt_tokens;
        let finished = finish(call, &standing).await?;
        return Ok(Reply(responder.whole(prompt_tokens, finished)).into_response());
    }
    Ok(sse::respond(state, move |to| stream(call, responder, includes_usage, standing, to)))
}

/// Sends the chunks of a call: for each choice its role, its text, its end.
async fn stream(
    call: Call,
    responder: Responder,
    includes_usage: bool,
    standing: Vec<String>,
    to: Sender<ApiResult<ChatCompletion>>,
) {
    const OBJECT: &str = "chat.completion.chunk";
    let usage = includes_usage.then_some(None);
    let (prompt_tokens, mut generated, mut inspection) = (call.prompt_tokens, 0, Inspection::default());
    let mut has_role: Vec<bool> = Vec::new();
    let mut events = Box::pin(events(call.runs));
    while let Some(event) = events.next().await {
        let object = match event {
            Err(error) => Err(error),
            Ok(Event::Piece(Piece { choice, text, tokens, finish, stop_reason, captures })) => {
                has_role.resize(has_role.len().max(choice + 1), false);
                let is_first = !std::mem::replace(&mut has_role[choice], true);
                let has_logprobs = responder.logprobs.is_some() && !tokens.is_empty();
                let is_empty = text.is_empty() && !has_logprobs && captures.is_empty() && !responder.returns_ids;
                if is_empty && finish.is_none() && !is_first {
                    continue;
                }
                let mut piece = responder.choice(choice, &tokens);
                piece.delta = Some(Delta {
                    role: is_first.then_some("assistant"),
                    content: (is_first || !text.is_empty()).then_some(text),
                });
                (piece.finish_reason, piece.stop_reason) = (finish, stop_reason);
                let mut object = responder.object(OBJECT, vec![piece], usage);
                object.inspection.capture_lines = captures;
                Ok(object)
            }
            Ok(Event::Ended(mut run)) => {
                generated += run.generated();
                run.report(&mut inspection, 0, &standing);
                continue;
            }
        };
        let failed = object.is_err();
        if to.send(object).await.is_err() || failed {
            return;
        }
    }
    if includes_usage || !responder.warnings.is_empty() || !inspection.is_empty() {
        let usage = includes_usage.then(|| Some(Usage::new(prompt_tokens, generated)));
        let last = responder.object(OBJECT, Vec::new(), usage);
        let _ = to.send(Ok(ChatCompletion { inspection, warnings: responder.warnings, ..last })).await;
    }
}

/// A page of stored chat completions.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatPage {
    /// `list`.
    object: &'static str,
    /// Always empty: the server stores none.
    #[schema(value_type = Vec<Object>)]
    data: [(); 0],
    /// Always null.
    first_id: Option<String>,
    /// Always null.
    last_id: Option<String>,
    /// Always false.
    has_more: bool,
}

/// List stored chat completions: there are none, because the server stores none.
#[utoipa::path(
    get, path = "/v1/chat/completions",
    responses((status = 200, body = ChatPage), (status = "default", body = ErrorBody))
)]
pub async fn list() -> Reply<ChatPage> {
    Reply(ChatPage { object: "list", data: [], first_id: None, last_id: None, has_more: false })
}
