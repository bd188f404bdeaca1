//! What a session leaves behind: every raw sample, and what follows from them. The file format of the lab.

use crate::check::{Check, State};
use crate::environment::Environment;
use crate::executor::Failing;
use crate::number;
use crate::protocol::{Allocations, Answer};
use crate::roofline::Roofline;
use crate::stats::Estimate;
use crate::suite::{Metric, Suite};
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};

/// The version of the file format.
pub const SCHEMA: &str = "pellucid/lab-result/v1";

/// The JSON Schema of that version.
pub const SCHEMA_TEXT: &str = include_str!("../schema/lab-result-v1.json");

/// A session with its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionResult {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// What was asked for.
    pub suite: Suite,
    /// How it was run.
    pub session: Session,
    /// On what machine.
    pub environment: Environment,
    /// Every process, in the order in which they ran.
    pub runs: Vec<Run>,
    /// Every pair of variants that was compared.
    pub comparisons: Vec<Comparison>,
    /// Every variant's state on every workload.
    pub cells: Vec<Cell>,
    /// Fits of time against what was captured.
    #[serde(default)]
    pub models: Vec<CostModel>,
    /// Limits that do not hold, in words.
    #[serde(default)]
    pub broken_limits: Vec<String>,
    /// Heap allocations of one run, from processes that gave no time; empty where nobody asked.
    #[serde(default)]
    pub allocations: Vec<Counted>,
    /// The products of the first of our variants against the machine's limits, from a process that gave no time.
    #[serde(default)]
    pub roofline: Option<Roofline>,
}

impl SessionResult {
    /// How many processes ran: where one did both sides of a pair, it counts once.
    pub fn processes(&self) -> usize {
        let together = |run: &&Run| self.suite.workloads.iter().any(|own| own.together && own.id == run.workload);
        self.runs.len() - self.runs.iter().filter(together).count() / 2
    }
}

/// How a session was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// When it began, seconds since 1970.
    pub began: u64,
    /// The seed of its order.
    pub seed: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// The command that asked for it.
    pub command: Vec<String>,
    /// The model, as it was found.
    pub model: String,
    /// Why it ended before all comparisons were precise enough; empty where it did not.
    #[serde(default)]
    pub ended_early: String,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The workload.
    pub workload: String,
    /// Its arm: who is compared with whom.
    pub arm: String,
    /// Which pair of its arm.
    pub pair: usize,
    /// Whether it is the reference's side of its pair.
    pub is_reference: bool,
    /// Its place among all processes of the session.
    pub place: usize,
    /// The variant that ran.
    pub variant: String,
    /// When it began, in seconds since the session did.
    pub at_s: f64,
    /// Characters that its environment was padded with: where a stack begins can change a time, so every process has another.
    #[serde(default)]
    pub padding: usize,
    /// What it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// How it failed, and what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<(Failing, String)>,
    /// Whether its numbers are right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

impl Run {
    /// A metric of it, unless its numbers are wrong: a wrong cell has no time.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let answer = self.answer.as_ref()?;
        if self.check.as_ref().is_some_and(|check| check.state == State::SilentlyWrong) {
            return None;
        }
        let value = match metric {
            Metric::Time => crate::stats::median(&answer.samples_s),
            Metric::Load => answer.load_to_first_token_s,
            Metric::Peak => answer.peak_bytes as f64,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }
}

/// Two variants on one workload by one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The workload.
    pub workload: String,
    /// The variant that is compared.
    pub variant: String,
    /// With whom.
    pub reference: String,
    /// By what.
    pub metric: Metric,
    /// Pairs that count.
    pub pairs: usize,
    /// The mean logarithm of the variant's value over the reference's.
    pub log_ratio: Estimate,
    /// What the session found between the reference and itself; infinite where it found nothing out.
    #[serde(with = "number")]
    pub noise: f64,
    /// Differences up to this share count as none.
    pub margin: f64,
    /// What may be said.
    pub verdict: Verdict,
    /// Pairs that would be needed to say more, where it is inconclusive.
    #[serde(default)]
    pub pairs_needed: Option<usize>,
    /// The variant's value, as a median over its processes.
    pub value: f64,
    /// The reference's.
    pub reference_value: f64,
    /// Values beyond Tukey's fences at 1.5 and 3, of both sides.
    pub outliers: (usize, usize),
    /// How both sides' logarithms moved with their place, per process.
    #[serde(default)]
    pub drift: Option<Estimate>,
}

/// A variant on a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// The worst state of its runs.
    pub state: State,
    /// Largest difference from the oracle.
    #[serde(with = "number")]
    pub max_abs: f32,
    /// What went wrong; empty where nothing did.
    #[serde(default)]
    pub why: String,
}

/// The allocations of a variant on a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// What one run allocated.
    pub allocations: Allocations,
}

/// Time against what was captured: `seconds = base + per_layer · layers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The workload.
    pub workload: String,
    /// Seconds without captures.
    pub base: Estimate,
    /// Seconds that each captured layer adds.
    pub per_layer: Estimate,
    /// The share of the variance that it explains.
    #[serde(with = "number")]
    pub r2: f64,
    /// What it was fitted to: layers and seconds.
    pub points: Vec<(f64, f64)>,
}
