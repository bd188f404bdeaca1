//! Generations, on the model's scheduler: tokens as they come, then the results.

use super::{check_plan, fault, respond_frames, results_frame};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, whole_body};
use crate::registry::ModelUse;
use crate::routes::blocking;
use crate::routes::direct::run_alone;
use crate::state::AppState;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pellucid_engine::{GenerateOptions, Generation, Request, RequestHandle, RowToken};
use pellucid_models::StopStrings;
use pellucid_models::wire::{Frame, GenerateCall, WireResults, encode_frame};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

whole_body!(GenerateCall);

/// Generate from rows of tokens under a plan and return what the engine returns, bit for bit.
#[utoipa::path(
    post, path = "/v1/remote/generate", request_body = Object,
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/vnd.pellucid.frames"),
        (status = "default", body = ErrorBody)
    )
)]
pub async fn generate(
    State(state): State<AppState>,
    Json { value: call, .. }: Json<GenerateCall>,
) -> ApiResult<Response> {
    let own = state.clone();
    let model = state.models.acquire(Some(&call.model), None).await?;
    let (model, call, handle) = blocking(move || {
        let handle = submit(&own, &model, &call)?;
        Ok((model, call, handle))
    })
    .await?;
    let own = state.clone();
    Ok(respond_frames(state, move |to| async move {
        let mut last_tokens = vec![None; call.rows.len()];
        while let Some(RowToken { row, token }) = next_token(&handle).await {
            let last = last_tokens[row].replace(Instant::now());
            let since = last.map_or(Duration::ZERO, |last: Instant| last.elapsed());
            own.metrics.count_token(&model.id, last.is_none(), since);
            if to.send(encode_frame(&Frame::Token(row, token))).await.is_err() {
                return Ok(());
            }
        }
        let no_result = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request ended without a result");
        let generation = handle.wait_within(Duration::ZERO).ok_or_else(no_result)?.map_err(fault)?;
        let plan = call.plan.clone();
        let results = locate(&own, model, call, generation).await?;
        let frame = blocking(move || results_frame(&results, &plan)).await?;
        let _ = to.send(frame).await;
        Ok(())
    }))
}

/// Checks a call and puts it into the queue of the scheduler.
fn submit(state: &AppState, model: &ModelUse, call: &GenerateCall) -> ApiResult<RequestHandle> {
    let (loaded, options) = (&model.loaded, call.options());
    loaded.model.check_generate(&call.rows, &call.plan, &options).map_err(fault)?;
    let limit = state.options.limits.max_tokens;
    if call.max_new > limit {
        let message = format!("the call asks for {} new tokens; the limit is {limit} (--max-tokens)", call.max_new);
        return Err(ApiError::field("max_new", message));
    }
    check_plan(state, model, &call.plan, call.rows.len())?;
    let (inputs, plan) = (call.rows.clone(), call.plan.clone());
    let mut request = Request {
        inputs,
        plan,
        options: GenerateOptions { adapters: model.row_adapters(), ..options },
        ..Request::default()
    };
    let stops = StopStrings::new(call.stop.clone()).map_err(fault)?;
    if !stops.is_empty() {
        loaded.request_text(call.rows.len(), &stops).map_err(fault)?.end_rows_of(&mut request);
    }
    state.metrics.count_prompt(&model.id, call.rows.iter().map(Vec::len).sum());
    model.scheduler.submit(request).map_err(fault)
}

/// Waits for the next token; `None` after the last.
async fn next_token(handle: &RequestHandle) -> Option<RowToken> {
    let ready = Arc::new(Notify::new());
    loop {
        match handle.try_next_token() {
            Ok(token) => return token,
            Err(()) => {
                let signal = ready.clone();
                handle.when_ready(move || signal.notify_one());
                ready.notified().await;
            }
        }
    }
}

/// Finds where a generation stops being finite, if the call asks for it and it does.
async fn locate(
    state: &AppState,
    model: ModelUse,
    call: GenerateCall,
    generation: Generation,
) -> ApiResult<WireResults> {
    let is_suspect = generation.rows.iter().any(|row| row.non_finite);
    let mut results = WireResults::of_generation(generation, None);
    if !call.locate_non_finite || !is_suspect && !results.has_nan() {
        return Ok(results);
    }
    run_alone(state, move |interrupt| {
        let options = pellucid_engine::GenerateOptions { interrupt: Some(interrupt), ..call.options() };
        // The search only explains: if it fails, the results go without it.
        let found = model.loaded.model.find_non_finite_generating(&call.rows, &call.plan, &options);
        results.non_finite = found.ok().flatten().map(|first| first.to_string());
        Ok(results)
    })
    .await
}
