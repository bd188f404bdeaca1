//! Runs.

use super::{check_captures, check_plan, fault, respond};
use crate::api_error::{ApiResult, ErrorBody};
use crate::body::{Json, whole_body};
use crate::routes::direct::run_alone;
use crate::state::AppState;
use axum::extract::State;
use axum::response::Response;
use pellucid_engine::RunOptions;
use pellucid_models::wire::{RunCall, WireResults};
use std::time::Instant;

whole_body!(RunCall);

/// Run rows of tokens under a plan and return what the engine returns, bit for bit.
#[utoipa::path(
    post, path = "/v1/remote/run", request_body = Object,
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/vnd.pellucid.results"),
        (status = "default", body = ErrorBody)
    )
)]
pub async fn run(State(state): State<AppState>, Json { value: call, .. }: Json<RunCall>) -> ApiResult<Response> {
    let (own, model) = (state.clone(), state.models.acquire(Some(&call.model), None).await?);
    run_alone(&state, move |interrupt| {
        let loaded = &model.loaded.model;
        let options = RunOptions { interrupt: Some(interrupt), ..call.options() };
        loaded.check_run(&call.rows, &call.plan, &options).map_err(fault)?;
        check_plan(&own, &model, &call.plan, call.rows.len())?;
        let lengths: Vec<usize> = call.rows.iter().map(Vec::len).collect();
        check_captures(&own, &model, &call.plan, &lengths)?;
        own.metrics.count_prompt(&model.id, lengths.iter().sum());
        let started = Instant::now();
        let run = loaded.run(&call.rows, &call.plan, &options).map_err(fault)?;
        let mut results = WireResults::of_run(run, started.elapsed(), None);
        if call.locate_nan && results.has_nan() {
            // The search only explains: if it fails, the results go without it.
            results.nan = loaded.find_nan(&call.rows, &call.plan, &options).ok().flatten();
        }
        respond(&results, &call.plan)
    })
    .await
}
