//! `/v1/lens`: the logit lens. `/v1/project`: inner products with directions.

use super::Reply;
use super::direct::{InputFields, PreparedCall, run_alone};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::inspection::{ArrayObject, PlanFields, arrays};
use crate::state::AppState;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use pellucid_analysis::lens::{LensTable, compute_with};
use pellucid_engine::{Action, Operand, Plan, Reduce, RunOptions, Tap};
use pellucid_models::results::Results;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request of `/v1/lens`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LensRequest {
    #[serde(flatten)]
    input: InputFields,
    #[serde(flatten)]
    plan: PlanFields,
}

impl RequestBody for LensRequest {
    fn read(source: &Source) -> ApiResult<LensRequest> {
        Ok(LensRequest { input: source.part()?, plan: source.part()? })
    }
}

/// The logit lens of a prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct LensResult {
    /// The prompt's tokens, and for each layer and position the most likely next tokens.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    table: LensTable,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Compute the logit lens of one prompt, under the edits of a plan.
#[utoipa::path(
    post, path = "/v1/lens", request_body = LensRequest,
    responses((status = 200, body = LensResult), (status = "default", body = ErrorBody))
)]
pub async fn lens(
    State(state): State<AppState>,
    Json { value: request, warnings }: Json<LensRequest>,
) -> ApiResult<Reply<LensResult>> {
    let (own, model) = (state.clone(), request.input.acquire(&state).await?);
    run_alone(&state, move |interrupt| {
        let PreparedCall { model, rows, plan } = PreparedCall::new(&own, model, &request.input, &request.plan)?;
        let [row] = &rows[..] else {
            return Err(ApiError::field(
                "prompt",
                format!("the lens takes one prompt; the request has {}", rows.len()),
            ));
        };
        let table = compute_with(&model.loaded, row, &plan, Some(interrupt))?;
        Ok(Reply(LensResult { table: LensTable { model: model.id.clone(), ..table }, warnings }))
    })
    .await
}

/// A request of `/v1/project`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ProjectRequest {
    #[serde(flatten)]
    own: ProjectFields,
    #[serde(flatten)]
    input: InputFields,
    #[serde(flatten)]
    plan: PlanFields,
}

/// The directions of `/v1/project`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ProjectFields {
    /// The site, or a pattern of sites.
    site: String,
    /// k directions, each as wide as the site.
    #[schema(min_items = 1)]
    directions: Vec<Vec<f32>>,
    /// Added to the inner products, one for each direction.
    bias: Option<Vec<f32>>,
    /// Replace negative results by 0.
    relu: Option<bool>,
}

impl RequestBody for ProjectRequest {
    fn read(source: &Source) -> ApiResult<ProjectRequest> {
        Ok(ProjectRequest { own: source.part()?, input: source.part()?, plan: source.part()? })
    }
}

/// The inner products.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProjectResult {
    /// The model.
    model: String,
    /// The tokens of each row.
    tokens: Vec<Vec<u32>>,
    /// `[positions, k]` for each row and site.
    tensors: Vec<ArrayObject>,
    /// Fields of the request that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Compute the inner products of activations with k directions, such as probes.
#[utoipa::path(
    post, path = "/v1/project", request_body = ProjectRequest,
    responses((status = 200, body = ProjectResult), (status = "default", body = ErrorBody))
)]
pub async fn project(
    State(state): State<AppState>,
    headers: HeaderMap,
    Json { value: request, warnings }: Json<ProjectRequest>,
) -> ApiResult<Response> {
    let (own, model) = (state.clone(), request.input.acquire(&state).await?);
    run_alone(&state, move |interrupt| {
        let ProjectFields { site, directions, bias, relu } = request.own;
        let count = directions.len();
        if count == 0 {
            return Err(ApiError::field("directions", "`directions` is empty; give at least one"));
        }
        if bias.as_ref().is_some_and(|bias| bias.len() != count) {
            return Err(ApiError::field("bias", format!("`bias` must have {count} elements, one for each direction")));
        }
        let prompts = request.input.prompts(&own, &model)?;
        let edits = request.plan.plan(&own.standing, &model.loaded)?;
        let first = edits.taps.len();
        let projection = Action::Capture(Some(Reduce::Project(Operand::Rows(directions))));
        let plan = edits.then(Plan::of([Tap::new(site, projection)]));
        let PreparedCall { model, rows, plan } = PreparedCall::of(&own, model, prompts, plan).map_err(|error| {
            if error.detail.param.as_deref() == Some("plan") { error.about("directions") } else { error }
        })?;
        let options = RunOptions { interrupt: Some(interrupt), ..RunOptions::default() };
        let mut run = model.loaded.model.run(&rows, &plan, &options)?;
        for capture in run.captures.iter_mut().filter(|capture| capture.tap >= first) {
            let shape = capture.array.shape().to_vec();
            let mut values = capture.array.values().to_vec();
            for line in values.chunks_exact_mut(count) {
                for (index, value) in line.iter_mut().enumerate() {
                    *value += bias.as_ref().map_or(0.0, |bias| bias[index]);
                    if relu == Some(true) {
                        *value = value.max(0.0);
                    }
                }
            }
            capture.array = pellucid_engine::Array::new(shape, values);
        }
        let (captures, saved, saes) = (&run.captures, &run.saved, model.loaded.saes());
        let results = Results { plan: &plan, captures, saved, rows: rows.len(), saes };
        arrays::respond(&headers, &results, |tensors| ProjectResult {
            model: model.id.clone(),
            tokens: rows.clone(),
            tensors,
            warnings,
        })
    })
    .await
}
