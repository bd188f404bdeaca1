//! `/v1/completions`: continues texts or token ids.

use super::{Reply, blocking};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::generation::{
    Call, CommonFields, CompletionLogprobs, Event, FinishReason, FinishedCall, GenerationFields, Piece, PieceToken,
    PromptField, PromptLogprobs, Usage, events, finish, prompt_logprobs, submit,
};
use crate::inspection::{Inspection, PlanFields};
use crate::registry::ModelUse;
use crate::state::AppState;
use crate::{ids, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::Sender;
use utoipa::ToSchema;

/// New tokens of a request that does not say how many, as in the OpenAI API.
const DEFAULT_TOKENS: usize = 16;

/// A request of `/v1/completions`.
/// `Deserialize` is only for the schema: [`RequestBody::read`] reads the parts one by one, so that
/// errors name the field.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    #[serde(flatten)]
    own: CompletionFields,
    #[serde(flatten)]
    common: CommonFields,
    #[serde(flatten)]
    plan: PlanFields,
}

/// The fields that only `/v1/completions` has.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionFields {
    /// The prompt or prompts.
    prompt: PromptField,
    /// New tokens; 16 if absent. With 0 only the prompt is computed.
    max_tokens: Option<usize>,
    /// Log-probabilities of each token, with this many most likely ones; 0 gives the token's own.
    logprobs: Option<usize>,
    /// Return the prompt before the completion, with its log-probabilities.
    echo: Option<bool>,
    /// Add the tokenizer's special tokens to text prompts; the default.
    add_special_tokens: Option<bool>,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    best_of: Option<usize>,
}

impl RequestBody for CompletionRequest {
    fn read(source: &Source) -> ApiResult<CompletionRequest> {
        Ok(CompletionRequest { own: source.part()?, common: source.part()?, plan: source.part()? })
    }
}

impl CompletionRequest {
    fn check(&self) -> ApiResult<()> {
        if self.own.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::refused("suffix", "the models do not fill in the middle"));
        }
        match self.own.best_of {
            Some(count) if count != self.common.n.unwrap_or(1) => {
                Err(ApiError::refused("best_of", "it must equal `n`; sample more choices and pick one"))
            }
            _ => Ok(()),
        }
    }

    fn submit(&self, state: &AppState, model: ModelUse) -> ApiResult<Call> {
        self.check()?;
        let prompts = self.own.prompt.encode(&model.loaded, self.own.add_special_tokens.unwrap_or(true))?;
        let fields = GenerationFields {
            common: &self.common,
            plan: &self.plan,
            max_tokens: Some(self.own.max_tokens.unwrap_or(DEFAULT_TOKENS)),
            max_tokens_field: "max_tokens",
            logprobs: self.own.logprobs,
            echo: self.own.echo.unwrap_or(false),
        };
        submit(state, model, prompts, &fields)
    }
}

/// A completion, or a chunk of one.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Completion {
    /// Its id.
    id: String,
    /// `text_completion`.
    object: &'static str,
    /// When it was made, in seconds since 1970.
    created: u64,
    /// The model.
    model: String,
    /// The version of the server.
    system_fingerprint: &'static str,
    /// The choices, prompt by prompt.
    choices: Vec<CompletionChoice>,
    /// Numbers of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    usage: Option<Option<Usage>>,
    #[serde(flatten)]
    inspection: Inspection,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A choice of a completion.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// The text.
    text: String,
    /// Its number.
    index: usize,
    /// Log-probabilities, if they were asked for.
    logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null in chunks before the last.
    finish_reason: Option<FinishReason>,
    /// `condition` if a condition of the plan ended it.
    #[schema(value_type = Option<String>)]
    stop_reason: Option<&'static str>,
    /// Its tokens, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    /// The prompt's tokens, with `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the prompt's tokens, with `prompt_logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
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
    fn object(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.id.clone(),
            system_fingerprint: concat!("pellucid-", env!("CARGO_PKG_VERSION")),
            choices,
            usage,
            inspection: Inspection::default(),
            warnings: Vec::new(),
        }
    }

    fn choice(&self, index: usize, text: String, tokens: &[PieceToken], prompt: usize) -> CompletionChoice {
        let mut logprobs = self.logprobs.map(|_| CompletionLogprobs::default());
        if let Some(logprobs) = &mut logprobs {
            logprobs.extend(&self.model.loaded, tokens, self.logprobs.unwrap_or(0));
        }
        let token_ids = || tokens.iter().skip(prompt).map(|token| token.token).collect();
        CompletionChoice {
            text,
            index,
            logprobs,
            finish_reason: None,
            stop_reason: None,
            token_ids: self.returns_ids.then(token_ids),
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }

    /// The response of a call that has ended.
    fn whole(self, prompt_tokens: usize, finished: FinishedCall) -> Completion {
        let FinishedCall { choices, runs, generated, inspection } = finished;
        let n = choices.len() / runs.len().max(1);
        let choices = choices.into_iter().enumerate().map(|(index, choice)| {
            let run = &runs[index / n.max(1)];
            let prompt = &run.context.prompt.tokens;
            let echoed = if run.context.echo { prompt.len() } else { 0 };
            CompletionChoice {
                finish_reason: choice.finish,
                stop_reason: choice.stop_reason,
                prompt_token_ids: self.returns_ids.then(|| prompt.clone()),
                prompt_logprobs: run
                    .context
                    .prompt_logprobs
                    .map(|top| prompt_logprobs(&self.model.loaded, &run.prompt_logprobs(), top)),
                ..self.choice(index, choice.text, &choice.tokens, echoed)
            }
        });
        let usage = Some(Some(Usage::new(prompt_tokens, generated)));
        let object = self.object(choices.collect(), usage);
        Completion { inspection, warnings: self.warnings, ..object }
    }
}

/// Continue prompts.
#[utoipa::path(
    post, path = "/v1/completions", request_body = CompletionRequest,
    responses((status = 200, body = Completion), (status = "default", body = ErrorBody))
)]
pub async fn create(
    State(state): State<AppState>,
    Json { value: request, warnings }: Json<CompletionRequest>,
) -> ApiResult<Response> {
    let (streams, includes_usage) = (request.common.streams()?, request.common.includes_usage());
    let returns_ids = request.common.return_token_ids.unwrap_or(false);
    let (logprobs, standing) = (request.own.logprobs, request.plan.plans.clone().unwrap_or_default());
    let model = state.models.acquire(request.common.model.as_deref(), request.common.adapter.as_deref()).await?;
    let own = state.clone();
    let call = blocking(move || request.submit(&own, model)).await?;
    let model = call.model.clone();
    let responder =
        Responder { id: ids::new("cmpl"), created: ids::unix_time(), model, logprobs, returns_ids, warnings };
    if !streams {
        let prompt_tokens = call.prompt_tokens;
        let finished = finish(call, &standing).await?;
        return Ok(Reply(responder.whole(prompt_tokens, finished)).into_response());
    }
    Ok(sse::respond(state, move |to| stream(call, responder, includes_usage, standing, to)))
}

/// Sends the chunks of a call.
async fn stream(
    call: Call,
    responder: Responder,
    includes_usage: bool,
    standing: Vec<String>,
    to: Sender<ApiResult<Completion>>,
) {
    let usage = includes_usage.then_some(None);
    let (prompt_tokens, mut generated, mut inspection) = (call.prompt_tokens, 0, Inspection::default());
    let mut has_started: Vec<bool> = Vec::new();
    let n = call.runs.get(1).map_or(usize::MAX, |run| run.context.first_choice);
    let prompts: Vec<Vec<u32>> = call.runs.iter().map(|run| run.context.prompt.tokens.clone()).collect();
    let echo = call.runs.first().is_some_and(|run| run.context.echo);
    let mut events = Box::pin(events(call.runs));
    while let Some(event) = events.next().await {
        let object = match event {
            Err(error) => Err(error),
            Ok(Event::Piece(Piece { choice, text, tokens, finish, stop_reason, captures })) => {
                let prompt = choice / n;
                has_started.resize(has_started.len().max(choice + 1), false);
                let is_first = !std::mem::replace(&mut has_started[choice], true);
                let echoed = if echo && is_first { prompts[prompt].len() } else { 0 };
                let has_logprobs = responder.logprobs.is_some() && !tokens.is_empty();
                let is_empty = text.is_empty() && !has_logprobs && captures.is_empty() && !responder.returns_ids;
                if is_empty && finish.is_none() {
                    continue;
                }
                let mut piece = responder.choice(choice, text, &tokens, echoed);
                (piece.finish_reason, piece.stop_reason) = (finish, stop_reason);
                piece.prompt_token_ids = (responder.returns_ids && is_first).then(|| prompts[prompt].clone());
                let mut object = responder.object(vec![piece], usage);
                object.inspection.capture_lines = captures;
                Ok(object)
            }
            Ok(Event::Ended(mut run)) => {
                generated += run.generated();
                let prompt = run.context.first_choice / n;
                run.report(&mut inspection, prompt, &standing);
                continue;
            }
        };
        let failed = object.is_err();
        if to.send(object).await.is_err() || failed {
            return;
        }
    }
    let has_more = includes_usage || !responder.warnings.is_empty() || !inspection.is_empty();
    if has_more {
        let usage = includes_usage.then(|| Some(Usage::new(prompt_tokens, generated)));
        let last = responder.object(Vec::new(), usage);
        let _ = to.send(Ok(Completion { inspection, warnings: responder.warnings, ..last })).await;
    }
}
