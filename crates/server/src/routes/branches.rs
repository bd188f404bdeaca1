//! `/v1/branches`: sweeps. Many plans on one prompt, each computed from the first position and
//! layer that it changes, streamed as they finish.

use super::direct::{InputFields, PreparedCall, run_alone};
use crate::api_error::{ApiError, ApiResult, ErrorBody};
use crate::body::{Json, RequestBody, Source};
use crate::inspection::{ArrayObject, PlanFields, arrays};
use crate::registry::ModelUse;
use crate::sse;
use crate::state::AppState;
use axum::extract::State;
use axum::response::Response;
use pellucid_engine::{Interrupt, Plan, Run};
use pellucid_models::results::Results;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc::Sender;
use utoipa::ToSchema;

/// Branches that run together.
const TOGETHER: usize = 32;
/// Most branches of a request.
const MAX_BRANCHES: usize = 16_384;

/// A request of `/v1/branches`: one prompt, the edits of all branches (`plan`, `steer`), and what
/// each returns (`capture`).
#[derive(Debug, Deserialize, ToSchema)]
pub struct BranchesRequest {
    #[serde(flatten)]
    own: BranchesFields,
    #[serde(flatten)]
    input: InputFields,
    #[serde(flatten)]
    plan: PlanFields,
}

/// The plans of the branches.
#[derive(Debug, Deserialize, ToSchema)]
pub struct BranchesFields {
    /// One plan for each branch.
    #[schema(value_type = Vec<Object>, min_items = 1)]
    branches: Vec<Value>,
}

impl RequestBody for BranchesRequest {
    fn read(source: &Source) -> ApiResult<BranchesRequest> {
        Ok(BranchesRequest { own: source.part()?, input: source.part()?, plan: source.part()? })
    }
}

/// The result of one branch, an event of the stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct BranchResult {
    /// The number of the branch.
    branch: usize,
    /// Its captures and saved values.
    tensors: Vec<ArrayObject>,
}

/// Run many plans on one prompt. Each result is a server-sent event; the bits are those of separate
/// runs.
#[utoipa::path(
    post, path = "/v1/branches", request_body = BranchesRequest,
    responses((status = 200, body = BranchResult, content_type = "text/event-stream"), (status = "default", body = ErrorBody))
)]
pub async fn create(
    State(state): State<AppState>,
    Json { value: request, .. }: Json<BranchesRequest>,
) -> ApiResult<Response> {
    let (own, model) = (state.clone(), request.input.acquire(&state).await?);
    let BranchesRequest { own: BranchesFields { branches }, input, plan } = request;
    let sweep = super::blocking(move || Sweep::new(&own, model, &input, &plan, &branches, "branches")).await?;
    let own = state.clone();
    Ok(sse::respond(state, move |to| async move {
        let sender = to.clone();
        let result = run_alone(&own, move |interrupt| {
            let saes = sweep.base.model.loaded.saes();
            sweep.run(interrupt, |branch, plan, run| {
                let (captures, saved, saes) = (&run.captures, &run.saved, saes.clone());
                let results = Results { plan, captures, saved, rows: 1, saes };
                let result = BranchResult { branch, tensors: arrays::objects(&results) };
                sender.blocking_send(Ok(result)).is_ok()
            })
        });
        if let Err(error) = result.await {
            let _ = Sender::send(&to, Err(error)).await;
        }
    }))
}

/// Many plans on one prompt, checked.
pub struct Sweep {
    pub base: PreparedCall,
    plans: Vec<Plan>,
}

impl Sweep {
    /// Makes and checks the plan of the base and those of the branches. Errors of branches name
    /// `field`, the list that has them.
    pub fn new(
        state: &AppState,
        model: ModelUse,
        input: &InputFields,
        fields: &PlanFields,
        branches: &[Value],
        field: &str,
    ) -> ApiResult<Sweep> {
        let count = branches.len();
        if !(1..=MAX_BRANCHES).contains(&count) {
            let message = format!("`{field}` has {count} plans; it must have from 1 to {MAX_BRANCHES}");
            return Err(ApiError::field(field, message));
        }
        let captures = PlanFields { capture: fields.capture.clone(), ..PlanFields::default() };
        let edits = PlanFields { capture: None, ..fields.clone() };
        let base = PreparedCall::new(state, model, input, &edits)?;
        if base.rows.len() != 1 {
            return Err(ApiError::field(
                "prompt",
                format!("branches have one prompt; the request has {}", base.rows.len()),
            ));
        }
        let loaded = &base.model.loaded;
        let captures = captures.own_plan(loaded)?;
        let mut capture_bytes = 0;
        let plan = |(index, plan): (usize, &Value)| {
            let in_branch = |error: ApiError| error.about(format!("{field}[{index}]"));
            let fields = PlanFields { plan: Some(plan.clone()), ..PlanFields::default() };
            let plan = fields.own_plan(loaded).map_err(in_branch)?.then(captures.clone());
            let plan = fields.prepare(plan, loaded, &base.rows, None).map_err(in_branch)?;
            let cost = plan.explain(&loaded.model, &[base.rows[0].len()]).map_err(|error| in_branch(error.into()))?;
            capture_bytes = cost.capture_bytes.max(capture_bytes);
            Ok(plan)
        };
        let plans = branches.iter().enumerate().map(plan).collect::<ApiResult<Vec<Plan>>>()?;
        if !plans.iter().any(Plan::returns_tensors) {
            return Err(ApiError::field("capture", "no branch returns anything; name sites in `capture`"));
        }
        let (together, limit) = (capture_bytes * count.min(TOGETHER), state.options.limits.capture_bytes);
        if together > limit {
            let message = format!("the captures of {TOGETHER} branches need {together} bytes; the limit is {limit}");
            return Err(ApiError::field("capture", message).with_code("captures_too_large"));
        }
        Ok(Sweep { base, plans })
    }

    /// Runs the branches and passes each with its number to `each`, until that returns false.
    pub fn run(&self, interrupt: Interrupt, mut each: impl FnMut(usize, &Plan, &Run) -> bool) -> ApiResult<()> {
        let PreparedCall { model, rows, plan } = &self.base;
        let base = model.loaded.model.base_with(&rows[0], plan, Some(interrupt))?;
        for (index, chunk) in self.plans.chunks(TOGETHER).enumerate() {
            let runs = base.branches(chunk)?;
            for (place, (run, plan)) in runs.iter().zip(chunk).enumerate() {
                if !each(index * TOGETHER + place, plan, run) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
