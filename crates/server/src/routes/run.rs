//! `/v1/run`: runs prompts once, with captures, edits and gradients. `/v1/explain`: its cost.

use super::Reply;
use super::direct::{InputFields, PreparedCall, run_alone};
use crate::api_error::{ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::inspection::{ArrayObject, PlanFields, arrays};
use crate::state::AppState;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use pellucid_engine::{Explanation, Mark, RunOptions};
use pellucid_models::results::Results;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request of `/v1/run` and `/v1/explain`: rows, and what to capture and change.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RunRequest {
    #[serde(flatten)]
    input: InputFields,
    #[serde(flatten)]
    plan: PlanFields,
}

impl RequestBody for RunRequest {
    fn read(source: &Source) -> ApiResult<RunRequest> {
        Ok(RunRequest { input: source.part()?, plan: source.part()? })
    }
}

/// The result of a run.
#[derive(Debug, Serialize, ToSchema)]
pub struct RunResult {
    /// The model.
    model: String,
    /// The tokens of each row.
    tokens: Vec<Vec<u32>>,
    /// Captures and saved values.
    tensors: Vec<ArrayObject>,
    /// Positions at which marks of the plan held.
    #[schema(value_type = Vec<Object>)]
    marks: Vec<Mark>,
    /// Sites of a pattern that the model does not have.
    skipped_sites: Vec<String>,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Run prompts once and return captures. With `Accept: application/vnd.safetensors` the body is a
/// safetensors file of the arrays.
#[utoipa::path(
    post, path = "/v1/run", request_body = RunRequest,
    responses((status = 200, body = RunResult), (status = "default", body = ErrorBody))
)]
pub async fn run(
    State(state): State<AppState>,
    headers: HeaderMap,
    Json { value: request, warnings }: Json<RunRequest>,
) -> ApiResult<Response> {
    let (own, model) = (state.clone(), request.input.acquire(&state).await?);
    run_alone(&state, move |interrupt| {
        let PreparedCall { model, rows, plan } = PreparedCall::new(&own, model, &request.input, &request.plan)?;
        let captures = request.plan.capture_options();
        let options = RunOptions { interrupt: Some(interrupt), captures, ..RunOptions::default() };
        let run = model.loaded.model.run(&rows, &plan, &options)?;
        let (captures, saved, saes) = (&run.captures, &run.saved, model.loaded.saes());
        let results = Results { plan: &plan, captures, saved, rows: rows.len(), saes };
        arrays::respond(&headers, &results, |tensors| RunResult {
            model: model.id.clone(),
            tokens: rows.clone(),
            tensors,
            marks: run.marks.clone(),
            skipped_sites: run.passed_over.iter().map(ToString::to_string).collect(),
            warnings,
        })
    })
    .await
}

/// What a run would do and cost; nothing runs.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExplainResult {
    /// The model.
    model: String,
    /// Ops, FLOPs, bytes, estimated seconds, and each tap.
    #[schema(value_type = Object)]
    explanation: Explanation,
    /// The same as text.
    text: String,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Explain a plan for prompts: what it does and what it costs. Nothing runs.
#[utoipa::path(
    post, path = "/v1/explain", request_body = RunRequest,
    responses((status = 200, body = ExplainResult), (status = "default", body = ErrorBody))
)]
pub async fn explain(
    State(state): State<AppState>,
    Json { value: request, warnings }: Json<RunRequest>,
) -> ApiResult<Reply<ExplainResult>> {
    let model = request.input.acquire(&state).await?;
    super::blocking(move || {
        let PreparedCall { model, rows, plan } = PreparedCall::new(&state, model, &request.input, &request.plan)?;
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        let explanation = plan.explain(&model.loaded.model, &lengths)?;
        let text = explanation.to_string();
        Ok(Reply(ExplainResult { model: model.id.clone(), explanation, text, warnings }))
    })
    .await
}
