//! Bodies of requests.

use pellucid_engine::plan::ValueId;
use pellucid_engine::{CaptureDtype, CaptureOptions, GenerateOptions, Plan, RunOptions, Sampling};
use serde::{Deserialize, Serialize};

/// A run: [`Model::run`](pellucid_engine::Model::run).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunCall {
    /// The model's name on the server.
    pub model: String,
    /// Tokens of each row.
    pub rows: Vec<Vec<u32>>,
    /// Captures and edits, as [`plan_for_wire`] returns them.
    pub plan: Plan,
    /// Chunked prefill.
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Gradient checkpointing.
    #[serde(default)]
    pub recompute: bool,
    /// Store captures as bf16.
    #[serde(default)]
    pub bf16: bool,
    /// If a result has NaN, find where it first appears.
    #[serde(default)]
    pub locate_nan: bool,
}

impl RunCall {
    /// The options of the run.
    pub fn options(&self) -> RunOptions {
        let captures = captures(self.bf16);
        RunOptions { chunk: self.chunk, recompute: self.recompute, captures, ..RunOptions::default() }
    }
}

/// Branches: runs of one row under many plans.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchesCall {
    /// The model's name on the server.
    pub model: String,
    /// Tokens of the row.
    pub tokens: Vec<u32>,
    /// Edits of all branches.
    pub plan: Plan,
    /// The plan of each branch.
    pub branches: Vec<Plan>,
}

/// A generation: [`Model::generate`](pellucid_engine::Model::generate).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateCall {
    /// The model's name on the server.
    pub model: String,
    /// Tokens of each row.
    pub rows: Vec<Vec<u32>>,
    /// Captures and edits, as [`plan_for_wire`] returns them.
    pub plan: Plan,
    /// Maximum number of new tokens per row.
    pub max_new: usize,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Tokens that end a row.
    pub eos: Vec<u32>,
    /// Texts that end a row.
    pub stop: Vec<String>,
    /// Chunked prefill.
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Speculative tokens per pass.
    #[serde(default)]
    pub lookup: usize,
    /// Store captures as bf16.
    #[serde(default)]
    pub bf16: bool,
    /// If a logit or a result is not finite, find where that begins.
    #[serde(default)]
    pub locate_non_finite: bool,
}

impl GenerateCall {
    /// The options of the generation.
    pub fn options(&self) -> GenerateOptions {
        GenerateOptions {
            max_new: self.max_new,
            sampling: self.sampling.clone(),
            eos: self.eos.clone(),
            chunk: self.chunk,
            lookup: self.lookup,
            captures: captures(self.bf16),
            ..GenerateOptions::default()
        }
    }
}

fn captures(bf16: bool) -> CaptureOptions {
    let dtype = if bf16 { CaptureDtype::Bf16 } else { CaptureDtype::F32 };
    CaptureOptions { dtype, ..CaptureOptions::default() }
}

/// Returns a plan whose values have their ids as names. In JSON the values of reading taps come
/// first, so that ids change on the way; `value_id` recovers them from the names.
pub fn plan_for_wire(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for id in plan.values.ids() {
        plan.values[id].name = Some(format!("v{id}"));
    }
    plan
}

/// The id that a value's name on the wire stands for.
pub(super) fn value_id(name: &str) -> Option<ValueId> {
    name.strip_prefix('v')?.parse().ok().map(ValueId::new)
}
