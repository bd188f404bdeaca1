//! Branches: sweeps over one row.

use super::{check_captures, check_plan, fault, respond_frames, results_frame};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, whole_body};
use crate::routes::blocking;
use crate::routes::direct::run_alone;
use crate::state::AppState;
use axum::extract::State;
use axum::response::Response;
use pellucid_engine::RunOptions;
use pellucid_models::wire::{BranchesCall, WireResults};
use std::time::{Duration, Instant};

whole_body!(BranchesCall);

/// Branches that run together.
const TOGETHER: usize = 32;
/// Most branches of a call.
const MAX_BRANCHES: usize = 16_384;

/// Run many plans on one row of tokens and return the result of each, bit for bit.
#[utoipa::path(
    post, path = "/v1/remote/branches", request_body = Object,
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/vnd.pellucid.frames"),
        (status = "default", body = ErrorBody)
    )
)]
pub async fn branches(
    State(state): State<AppState>,
    Json { value: call, .. }: Json<BranchesCall>,
) -> ApiResult<Response> {
    let own = state.clone();
    let model = state.models.acquire(Some(&call.model), None).await?;
    let (model, call) = blocking(move || {
        if !(1..=MAX_BRANCHES).contains(&call.branches.len()) {
            let message = format!("the call has {} branches; it must have 1 to {MAX_BRANCHES}", call.branches.len());
            return Err(ApiError::field("branches", message));
        }
        let (loaded, rows) = (&model.loaded.model, std::slice::from_ref(&call.tokens));
        loaded.check_run(rows, &call.plan, &RunOptions::default()).map_err(fault)?;
        for plan in std::iter::once(&call.plan).chain(&call.branches) {
            check_plan(&own, &model, plan, 1)?;
            check_captures(&own, &model, plan, &[call.tokens.len()])?;
        }
        Ok((model, call))
    })
    .await?;
    let own = state.clone();
    Ok(respond_frames(state, move |to| async move {
        run_alone(&own, move |interrupt| {
            let base = model.loaded.model.base_with(&call.tokens, &call.plan, Some(interrupt)).map_err(fault)?;
            for plans in call.branches.chunks(TOGETHER) {
                let started = Instant::now();
                let runs = base.branches(plans).map_err(fault)?;
                let time: Duration = started.elapsed() / u32::try_from(plans.len()).unwrap_or(u32::MAX);
                for (run, plan) in runs.into_iter().zip(plans) {
                    let frame = results_frame(&WireResults::of_run(run, time, None), plan)?;
                    if to.blocking_send(frame).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
        .await
    }))
}
