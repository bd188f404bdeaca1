//! Standing plans: registered once, applied to all requests or to those that name them.

use super::PlanFields;
use crate::api_error::{ApiError, ApiResult};
use axum::http::StatusCode;
use pellucid_engine::Plan;
use pellucid_models::LoadedModel;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use utoipa::ToSchema;

/// Most standing plans.
const MAX_PLANS: usize = 256;

/// A standing plan.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StandingPlan {
    /// Its name.
    pub name: String,
    /// Whether it applies to every completion request; otherwise to those that list it in `plans`.
    pub all: bool,
    /// The fields of the plan.
    #[serde(flatten)]
    pub fields: PlanFields,
    /// Captures of the requests that it was applied to, in the order of their ends.
    pub captures: Vec<String>,
}

/// All standing plans.
#[derive(Default)]
pub struct StandingPlans(Mutex<BTreeMap<String, StandingPlan>>);

impl StandingPlans {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StandingPlan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a plan; a plan of the same name is replaced.
    pub fn register(&self, plan: StandingPlan) -> ApiResult<()> {
        let mut plans = self.lock();
        if plans.len() >= MAX_PLANS && !plans.contains_key(&plan.name) {
            let message = format!("there are {MAX_PLANS} standing plans, the limit; delete one");
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message));
        }
        plans.insert(plan.name.clone(), plan);
        Ok(())
    }

    /// All plans by name.
    pub fn list(&self) -> Vec<StandingPlan> {
        self.lock().values().cloned().collect()
    }

    /// Removes a plan.
    pub fn remove(&self, name: &str) -> ApiResult<StandingPlan> {
        self.lock().remove(name).ok_or_else(|| unknown(name))
    }

    /// The plan of a name.
    pub fn get(&self, name: &str) -> ApiResult<StandingPlan> {
        self.lock().get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// The taps of a plan for a model.
    pub fn plan(&self, name: &str, loaded: &LoadedModel) -> ApiResult<Plan> {
        self.get(name).map_err(|error| error.with_param("plans"))?.fields.own_plan(loaded)
    }

    /// The plans that apply to every request.
    pub fn for_all(&self, loaded: &LoadedModel) -> ApiResult<Vec<Plan>> {
        let all: Vec<StandingPlan> = self.lock().values().filter(|plan| plan.all).cloned().collect();
        all.iter().map(|plan| plan.fields.own_plan(loaded)).collect()
    }

    /// Notes the captures of a request that these plans were applied to.
    pub fn add_captures(&self, named: &[String], id: &str) {
        for plan in self.lock().values_mut().filter(|plan| plan.all || named.contains(&plan.name)) {
            plan.captures.push(id.to_owned());
        }
    }
}

fn unknown(name: &str) -> ApiError {
    let message = format!("there is no standing plan `{name}`; GET /v1/plans lists them");
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("plan_not_found")
}
