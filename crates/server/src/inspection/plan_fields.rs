//! The fields of a request that look in: `plan`, `capture`, `steer`, `plans`.

use super::StandingPlans;
use crate::api_error::{ApiError, ApiResult};
use pellucid_engine::{CaptureDtype, CaptureOptions, Plan, SteeringSpec};
use pellucid_models::attach::check_saes;
use pellucid_models::chat::ChatPrompt;
use pellucid_models::{LoadedModel, capture_taps, file_reference, prepare_chats};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use utoipa::ToSchema;

/// What a request reads and changes inside the model.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct PlanFields {
    /// A plan: taps that read or change activations, as in docs/plans.md. It names no files.
    #[schema(value_type = Option<Object>)]
    pub plan: Option<Value>,
    /// Sites to capture, as patterns or as taps.
    #[schema(value_type = Option<Vec<Object>>, example = json!(["layers.*.resid_post", {"site": "logits", "positions": "last"}]))]
    pub capture: Option<Vec<Value>>,
    /// A steering spec, as in docs/plans.md#steering-specs.
    #[schema(value_type = Option<Object>)]
    pub steer: Option<Value>,
    /// Dtype of captured arrays.
    pub capture_dtype: Option<DtypeField>,
    /// In a stream: send captured positions with the chunks, as they are computed.
    pub stream_captures: Option<bool>,
    /// Names of standing plans to apply.
    pub plans: Option<Vec<String>>,
}

/// The dtype of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DtypeField {
    /// 32-bit floats.
    F32,
    /// Half the bytes, rounded to nearest even.
    Bf16,
}

impl PlanFields {
    /// Makes the plan: edits first, then steering, then captures, which see edited activations.
    pub fn plan(&self, registered: &StandingPlans, loaded: &LoadedModel) -> ApiResult<Plan> {
        let mut plan = self.own_plan(loaded)?;
        for name in self.plans.iter().flatten() {
            plan = registered.plan(name, loaded)?.then(plan);
        }
        for standing in registered.for_all(loaded)? {
            plan = standing.then(plan);
        }
        Ok(plan)
    }

    /// The plan without standing plans.
    pub fn own_plan(&self, loaded: &LoadedModel) -> ApiResult<Plan> {
        let in_plan = |error: ApiError| error.with_param("plan");
        let mut plan = match &self.plan {
            None | Some(Value::Null) => Plan::default(),
            Some(Value::String(_)) => {
                return Err(ApiError::field(
                    "plan",
                    "`plan` is a text; a plan over HTTP is an object and names no file",
                ));
            }
            Some(plan) => serde_json::from_value(plan.clone())
                .map_err(|error| ApiError::field("plan", format!("`plan`: {error}; docs/plans.md shows its form")))?,
        };
        check_saes(&loaded.saes(), &plan, Path::new("")).map_err(|error| in_plan(error.into()))?;
        refuse_files(&plan, "plan")?;
        match &self.steer {
            None | Some(Value::Null) => {}
            Some(Value::Object(_)) => {
                let spec = self.steer.clone().unwrap_or_default();
                let in_steer = |error: pellucid_engine::Error| ApiError::from(error).with_param("steer");
                let spec = SteeringSpec::from_json(&spec).map_err(in_steer)?;
                let taps = Plan { taps: spec.taps(), ..Plan::default() };
                refuse_files(&taps, "steer")?;
                spec.check(loaded.model.program()).map_err(in_steer)?;
                plan.taps.extend(taps.taps);
            }
            Some(_) => {
                return Err(ApiError::field("steer", "`steer` must be a steering spec, an object that names no file"));
            }
        }
        if let Some(captures) = &self.capture {
            let taps = capture_taps(captures.clone()).map_err(|error| ApiError::from(error).with_param("capture"))?;
            plan.taps.extend(taps);
        }
        Ok(plan)
    }

    /// Resolves tokens and messages in the positions of a plan.
    pub fn prepare(
        &self,
        plan: Plan,
        loaded: &LoadedModel,
        inputs: &[Vec<u32>],
        chat: Option<&ChatPrompt>,
    ) -> ApiResult<Plan> {
        let chats = vec![chat.cloned(); inputs.len()];
        prepare_chats(plan, Path::new(""), inputs, &chats, loaded.tokenizer.as_deref())
            .map_err(|error| ApiError::from(error).with_param("plan"))
    }

    /// An error of the engine, with the field that a wrong plan came from.
    pub fn locate(&self, error: pellucid_engine::Error) -> ApiError {
        use pellucid_engine::Error;
        let is_about_plan =
            matches!(error, Error::Site { .. } | Error::Plan { .. } | Error::Value { .. } | Error::Several(_));
        let field = match self {
            PlanFields { plan: Some(_), .. } => "plan",
            PlanFields { capture: Some(_), .. } => "capture",
            PlanFields { steer: Some(_), .. } => "steer",
            _ => "plans",
        };
        let error = ApiError::from(error);
        if is_about_plan { error.with_param(field) } else { error }
    }

    /// How captures are stored.
    pub fn capture_options(&self) -> CaptureOptions {
        let dtype = match self.capture_dtype {
            None | Some(DtypeField::F32) => CaptureDtype::F32,
            Some(DtypeField::Bf16) => CaptureDtype::Bf16,
        };
        CaptureOptions { dtype, ..CaptureOptions::default() }
    }
}

/// Refuses a plan that names a file: it would be read from the server's disk.
pub fn refuse_files(plan: &Plan, param: &str) -> ApiResult<()> {
    match file_reference(plan) {
        None => Ok(()),
        Some(file) => {
            let message = format!("`{param}` names the file {file:?}; plans over HTTP name no files: give the numbers");
            Err(ApiError::field(param, message).with_code("file_not_allowed"))
        }
    }
}
