//! Limits on latency and memory.

use super::Category;
use super::benchmarks::SMOLLM2;
use super::result::BenchmarkResult;
use serde::{Deserialize, Serialize};

/// A limit and the measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Name of the gate.
    pub what: String,
    /// The limited quantity.
    pub quantity: Quantity,
    /// The limit, in seconds or megabytes.
    pub limit: f64,
    /// The benchmark closest to the limit, or furthest beyond it; `None` if none was measured.
    pub benchmark: Option<String>,
    /// Its value.
    pub value: Option<f64>,
    /// Whether the value is within the limit.
    pub state: GateState,
}

/// Quantity that a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The mean time, in seconds.
    MeanTime,
    /// The memory delta, in megabytes.
    MemoryDelta,
}

/// State of a gate, in increasing severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateState {
    /// No measurement, or an unoptimized build.
    NotJudged,
    /// Within the limit.
    Met,
    /// The mean exceeds the limit, but some rounds do not: too noisy to decide.
    Undecided,
    /// Every round exceeds the limit.
    Missed,
}

impl GateState {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            GateState::Met => "met",
            GateState::Missed => "MISSED",
            GateState::Undecided => "undecided",
            GateState::NotJudged => "not judged",
        }
    }
}

/// Name, quantity, limit, and prefix of the benchmarks' names. An empty prefix selects all fast
/// queries.
const RULES: [(&str, Quantity, f64, &str); 9] = [
    ("architecture detection", Quantity::MeanTime, 5e-5, "architecture_detection_"),
    ("category detection", Quantity::MeanTime, 5e-5, "category_detection_"),
    ("SAE detection", Quantity::MeanTime, 5e-5, "sae_detection_"),
    ("omni detection", Quantity::MeanTime, 5e-5, "omni_detection_"),
    ("support check", Quantity::MeanTime, 5e-5, "support_check_"),
    ("full report of a sharded 7B directory", Quantity::MeanTime, 2e-3, "full_report_sharded_7b"),
    ("configuration of 1 MB", Quantity::MeanTime, 1e-2, "arch_variation_very_large_config"),
    (OPENING, Quantity::MeanTime, 0.3, "real_model_open"),
    ("memory of an answer", Quantity::MemoryDelta, 0.2, ""),
];
const OPENING: &str = "SmolLM2-135M opened, ready to run";
const FAST: [Category; 5] =
    [Category::Detection, Category::Sae, Category::Support, Category::Memory, Category::Regression];

/// Evaluates the gates. Times of an unoptimized build are shown but not judged.
pub fn judge(results: &[BenchmarkResult], is_optimized: bool) -> Vec<Gate> {
    let gate = |(what, quantity, limit, prefix): (&str, Quantity, f64, &str)| {
        let covers = |row: &&BenchmarkResult| match prefix {
            "" => FAST.contains(&row.category),
            _ => {
                row.name.starts_with(prefix)
                    && (what != OPENING || row.metadata.get("model").is_some_and(|m| m == SMOLLM2))
            }
        };
        let measured = results.iter().filter(covers).filter_map(|row| match quantity {
            Quantity::MeanTime => {
                let times = row.times.as_ref()?;
                Some((row, times.mean_time, times.spread().0))
            }
            Quantity::MemoryDelta => row.memory_delta_mb.map(|value| (row, value, value)),
        });
        // `least` is the fastest round. A certain miss ranks above an undecided one, whatever the
        // means.
        let judged = measured.map(|(row, value, least)| match (value < limit, least < limit) {
            (true, _) => (GateState::Met, value, row),
            (false, true) => (GateState::Undecided, value, row),
            (false, false) => (GateState::Missed, value, row),
        });
        let worst = judged.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let is_judged = is_optimized || quantity == Quantity::MemoryDelta;
        Gate {
            what: what.into(),
            quantity,
            limit,
            benchmark: worst.map(|(_, _, row)| row.name.clone()),
            value: worst.map(|(_, value, _)| value),
            state: worst.filter(|_| is_judged).map_or(GateState::NotJudged, |(state, ..)| state),
        }
    };
    RULES.map(gate).into()
}
