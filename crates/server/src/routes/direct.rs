//! What the routes share that run the model directly, one call at a time, beside the scheduler.

use super::blocking;
use crate::api_error::{ApiError, ApiResult};
use crate::generation::{ChatMessage, Prompt, PromptField, encode_chat};
use crate::inspection::PlanFields;
use crate::registry::ModelUse;
use crate::state::AppState;
use axum::http::StatusCode;
use pellucid_engine::{Interrupt, Plan};
use pellucid_models::chat::ChatPrompt;
use pellucid_models::prepare_chats;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use utoipa::ToSchema;

/// The model and the input of a call: `prompt` or `messages`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct InputFields {
    /// The model, or an alias of it; the server's first model if absent. `MODEL:ADAPTER` names one
    /// of its adapters, too.
    pub model: Option<String>,
    /// The LoRA adapter that is applied, one of those that the server attached to the model.
    #[schema(example = "german")]
    pub adapter: Option<String>,
    /// A text, a list of texts, token ids, or a list of lists of token ids: one row each.
    pub prompt: Option<PromptField>,
    /// A conversation, instead of `prompt`.
    #[schema(min_items = 1)]
    pub messages: Option<Vec<ChatMessage>>,
    /// Add the tokenizer's special tokens to texts; the default.
    pub add_special_tokens: Option<bool>,
}

impl InputFields {
    /// Finds the model, and loads it if it is not in memory.
    pub async fn acquire(&self, state: &AppState) -> ApiResult<ModelUse> {
        state.models.acquire(self.model.as_deref(), self.adapter.as_deref()).await
    }

    /// Encodes the input.
    pub fn prompts(&self, state: &AppState, model: &ModelUse) -> ApiResult<Vec<Prompt>> {
        let prompts = match (&self.prompt, &self.messages) {
            (Some(prompt), None) => prompt.encode(&model.loaded, self.add_special_tokens.unwrap_or(true))?,
            (None, Some(messages)) => vec![encode_chat(&model.loaded, messages, Default::default())?],
            (None, None) => {
                return Err(ApiError::field("prompt", "the request has no input; give `prompt` or `messages`"));
            }
            (Some(_), Some(_)) => {
                return Err(ApiError::field("messages", "the request has `prompt` and `messages`; give one of them"));
            }
        };
        let limit = state.options.limits.rows;
        match prompts.len() > limit {
            true => {
                Err(ApiError::field("prompt", format!("the request has {} rows; the limit is {limit}", prompts.len())))
            }
            false => Ok(prompts),
        }
    }
}

/// The rows of a call with its plan, checked against the server's limits.
pub struct PreparedCall {
    pub model: ModelUse,
    pub rows: Vec<Vec<u32>>,
    pub plan: Plan,
}

impl PreparedCall {
    /// Encodes the input and makes the plan.
    pub fn new(state: &AppState, model: ModelUse, input: &InputFields, fields: &PlanFields) -> ApiResult<PreparedCall> {
        let prompts = input.prompts(state, &model)?;
        let plan = fields.plan(&state.standing, &model.loaded)?;
        PreparedCall::of(state, model, prompts, plan)
    }

    /// Resolves the positions of a plan and refuses calls that are too large.
    pub fn of(state: &AppState, model: ModelUse, prompts: Vec<Prompt>, plan: Plan) -> ApiResult<PreparedCall> {
        let (rows, chats): (Vec<Vec<u32>>, Vec<Option<ChatPrompt>>) =
            prompts.into_iter().map(|prompt| (prompt.tokens, prompt.chat)).unzip();
        check_tokens(&model, &rows)?;
        let plan = prepare_chats(plan, Path::new(""), &rows, &chats, model.loaded.tokenizer.as_deref())
            .map_err(|error| ApiError::from(error).with_param("plan"))?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let cost =
            plan.explain(&model.loaded.model, &lengths).map_err(|error| ApiError::from(error).with_param("plan"))?;
        let limit = state.options.limits.capture_bytes;
        if cost.capture_bytes > limit {
            let message =
                format!("the captures need {} bytes; the limit of this server is {limit}", cost.capture_bytes);
            return Err(ApiError::field("capture", message).with_code("captures_too_large"));
        }
        Ok(PreparedCall { model, rows, plan })
    }
}

/// Refuses rows that the model cannot run, before their cost is computed.
fn check_tokens(model: &ModelUse, rows: &[Vec<u32>]) -> ApiResult<()> {
    let vocab = model.loaded.model.program().architecture().vocab;
    for (index, row) in rows.iter().enumerate() {
        if let Some(token) = row.iter().find(|&&token| token as usize >= vocab) {
            let message = format!("row {index} has token {token}, but the vocabulary has {vocab} tokens");
            return Err(ApiError::field("prompt", message));
        }
        if let Some(context) = model.context().filter(|context| row.len() > *context) {
            let message = format!("row {index} has {} tokens, but the model's context has {context}", row.len());
            return Err(ApiError::field("prompt", message).with_code("context_length_exceeded"));
        }
    }
    Ok(())
}

/// Runs work on the model when no other direct call runs. When the client disconnects, the work is
/// interrupted.
pub async fn run_alone<T: Send + 'static>(
    state: &AppState,
    work: impl FnOnce(Interrupt) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let closed = |_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down");
    let permit = state.direct.clone().acquire_owned().await.map_err(closed)?;
    let guard = DropFlag(Arc::new(AtomicBool::new(false)));
    let is_dropped = guard.0.clone();
    let interrupt = Interrupt(Arc::new(move || is_dropped.load(Ordering::Relaxed)));
    let result = blocking(move || {
        let _permit = permit;
        work(interrupt)
    });
    let result = result.await;
    drop(guard);
    result
}

/// Sets a flag when it is dropped, also if the handler's future is.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
