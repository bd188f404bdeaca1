//! The result of a session: every raw sample and the comparisons computed from them. The lab's file
//! format.

use crate::check::{CellState, Check};
use crate::environment::Environment;
use crate::executor::FailureKind;
use crate::json_float;
use crate::protocol::{Allocations, Answer};
use crate::roofline::Roofline;
use crate::stats::Estimate;
use crate::suite::{Metric, Suite};
use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};

/// Version of the file format.
pub const SCHEMA: &str = "pellucid/lab-result/v1";

/// JSON Schema of this version.
pub const SCHEMA_TEXT: &str = include_str!("../schema/lab-result-v1.json");

/// A session with its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionResult {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// The suite that ran.
    pub suite: Suite,
    /// Seed, duration and command.
    pub session: Session,
    /// The machine, the build and the model.
    pub environment: Environment,
    /// One entry per measured side of a pair, in the order in which they ran.
    pub runs: Vec<Run>,
    /// The comparisons, per workload, pairing and metric.
    pub comparisons: Vec<Comparison>,
    /// Correctness of every variant on every workload.
    pub cells: Vec<Cell>,
    /// Linear fits of time against the number of captured layers.
    #[serde(default, rename = "models")]
    pub cost_models: Vec<CostModel>,
    /// Descriptions of the limits that are exceeded.
    #[serde(default)]
    pub broken_limits: Vec<String>,
    /// Heap allocations of one run, from separate untimed processes; empty without `--allocations`.
    #[serde(default)]
    pub allocations: Vec<AllocationCounts>,
    /// Matmuls of the first Pellucid variant against the machine's limits, from a separate untimed
    /// process.
    #[serde(default)]
    pub roofline: Option<Roofline>,
}

impl SessionResult {
    /// Returns the number of processes. With `same_process` one process measures both sides of a
    /// pair and counts once.
    pub fn processes(&self) -> usize {
        let same_process =
            |run: &&Run| self.suite.workloads.iter().any(|own| own.same_process && own.id == run.workload);
        self.runs.len() - self.runs.iter().filter(same_process).count() / 2
    }
}

/// Seed, duration and command of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Start time, Unix seconds.
    pub began: u64,
    /// Seed of the random order.
    pub seed: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The command line.
    pub command: Vec<String>,
    /// Path or name of the model.
    pub model: String,
    /// Why the session stopped before all comparisons were precise enough; empty if it did not.
    #[serde(default)]
    pub ended_early: String,
}

/// One side of a pair: a process, or one of the two jobs of a process (`same_process`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The workload.
    pub workload: String,
    /// The compared variants: `reference → variant`.
    #[serde(rename = "arm")]
    pub pairing: String,
    /// Index of the pair within its pairing.
    pub pair: usize,
    /// Whether this is the reference's side of the pair.
    pub is_reference: bool,
    /// Index in the order of execution.
    #[serde(rename = "place")]
    pub order: usize,
    /// The variant that ran.
    pub variant: String,
    /// Start time, in seconds after the session's start.
    pub at_s: f64,
    /// Bytes of padding in the process's environment. The padding shifts the stack, whose alignment
    /// can change times, so it is random per process.
    #[serde(default)]
    pub padding: usize,
    /// The worker's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// The kind of failure and the end of the worker's stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<(FailureKind, String)>,
    /// Comparison with the oracle's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

impl Run {
    /// Returns a metric, or `None` if the output is wrong: wrong outputs have no time.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        let answer = self.answer.as_ref()?;
        if self.check.as_ref().is_some_and(|check| check.state == CellState::SilentlyWrong) {
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

/// A variant compared with a reference on one workload, by one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The workload.
    pub workload: String,
    /// The variant that is compared.
    pub variant: String,
    /// The variant that it is compared with.
    pub reference: String,
    /// The compared quantity.
    pub metric: Metric,
    /// Number of complete pairs.
    pub pairs: usize,
    /// Mean of ln(variant / reference) over the pairs, with its 95 % confidence interval.
    pub log_ratio: Estimate,
    /// Noise floor: half the width of the A/A control's interval (reference against itself), as a
    /// logarithm; infinite if no A/A pair completed.
    #[serde(with = "json_float")]
    pub noise: f64,
    /// Equivalence margin: relative differences up to this count as equal.
    pub margin: f64,
    /// The verdict.
    pub verdict: Verdict,
    /// Estimated number of pairs for a decision, if the verdict is inconclusive.
    #[serde(default)]
    pub pairs_needed: Option<usize>,
    /// Median of the variant's values.
    pub value: f64,
    /// Median of the reference's values.
    pub reference_value: f64,
    /// Outliers of both sides: values beyond Tukey's fences at 1.5 and at 3 interquartile ranges.
    pub outliers: (usize, usize),
    /// Linear drift of the logarithms with the order of execution, per process.
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
    /// Worst state of its runs.
    pub state: CellState,
    /// Largest difference from the oracle.
    #[serde(with = "json_float")]
    pub max_abs: f32,
    /// The reason; empty if the output is correct.
    #[serde(default)]
    pub why: String,
}

/// Heap allocations of a variant on a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocationCounts {
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// Allocations of one run.
    pub allocations: Allocations,
}

/// Linear fit of time against captured layers: `seconds = base + per_layer · layers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// The workload.
    pub workload: String,
    /// Seconds without captures.
    pub base: Estimate,
    /// Additional seconds per captured layer.
    pub per_layer: Estimate,
    /// Coefficient of determination (R²).
    #[serde(with = "json_float")]
    pub r2: f64,
    /// The fitted data: (layers, seconds).
    pub points: Vec<(f64, f64)>,
}
