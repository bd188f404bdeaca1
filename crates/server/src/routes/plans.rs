//! `/v1/plans`: standing plans, registered once and applied to later completion requests.

use super::Reply;
use super::captures::Deleted;
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::extract::PathParam;
use crate::inspection::{PlanFields, StandingPlan};
use crate::state::AppState;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A plan to register.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PlanRequest {
    #[serde(flatten)]
    own: PlanName,
    #[serde(flatten)]
    plan: PlanFields,
}

/// The name of a standing plan.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PlanName {
    /// Its name, which requests list in `plans`. A plan of the same name is replaced.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// Apply it to every completion request.
    all: Option<bool>,
    /// The model that the plan is checked against; the server's first model if absent.
    model: Option<String>,
}

impl RequestBody for PlanRequest {
    fn read(source: &Source) -> ApiResult<PlanRequest> {
        Ok(PlanRequest { own: source.part()?, plan: source.part()? })
    }
}

/// All standing plans.
#[derive(Debug, Serialize, ToSchema)]
pub struct PlanList {
    /// The plans, with the ids of their captures.
    plans: Vec<StandingPlan>,
}

/// Register a plan.
#[utoipa::path(
    post, path = "/v1/plans", request_body = PlanRequest,
    responses((status = 200, body = StandingPlan), (status = "default", body = ErrorBody))
)]
pub async fn create(
    State(state): State<AppState>,
    Json { value: PlanRequest { own, plan }, .. }: Json<PlanRequest>,
) -> ApiResult<Reply<StandingPlan>> {
    if own.name.is_empty() || own.name.len() > 200 {
        return Err(ApiError::field("name", "`name` must have from 1 to 200 bytes"));
    }
    if plan.plans.is_some() {
        return Err(ApiError::field("plans", "a standing plan does not refer to others"));
    }
    let model = state.models.acquire(own.model.as_deref(), None).await?;
    let taps = plan.own_plan(&model.loaded)?;
    // A wrong site is reported now, not by every later request. The rest depends on its prompt.
    for tap in &taps.taps {
        model.loaded.model.find(&tap.site).map_err(|error| plan.locate(error))?;
    }
    let standing = StandingPlan { name: own.name, all: own.all.unwrap_or(false), fields: plan, captures: Vec::new() };
    state.standing.register(standing.clone())?;
    Ok(Reply(standing))
}

/// List the standing plans and the captures that they collected.
#[utoipa::path(get, path = "/v1/plans", responses((status = 200, body = PlanList), (status = "default", body = ErrorBody)))]
pub async fn list(State(state): State<AppState>) -> Reply<PlanList> {
    Reply(PlanList { plans: state.standing.list() })
}

/// Show a standing plan and the captures that it collected.
#[utoipa::path(
    get, path = "/v1/plans/{name}", params(("name" = String, Path, description = "Name of the plan")),
    responses((status = 200, body = StandingPlan), (status = "default", body = ErrorBody))
)]
pub async fn show(State(state): State<AppState>, PathParam(name): PathParam) -> ApiResult<Reply<StandingPlan>> {
    Ok(Reply(state.standing.get(&name)?))
}

/// Remove a standing plan and the captures that it collected.
#[utoipa::path(
    delete, path = "/v1/plans/{name}", params(("name" = String, Path, description = "Name of the plan")),
    responses((status = 200, body = Deleted), (status = "default", body = ErrorBody))
)]
pub async fn delete(State(state): State<AppState>, PathParam(name): PathParam) -> ApiResult<Reply<Deleted>> {
    let plan = state.standing.remove(&name)?;
    for id in &plan.captures {
        // Newer captures may have pushed it out.
        let _ = state.captures.remove(id);
    }
    Ok(Reply(Deleted { id: name, deleted: true }))
}
