//! Limits on time and memory.

use super::Category;
use super::benchmarks::SMOLLM2;
use super::result::Row;
use serde::{Deserialize, Serialize};

/// A limit and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What is limited.
    pub what: String,
    /// Of which quantity.
    pub quantity: Quantity,
    /// What it may be: seconds or megabytes.
    pub limit: f64,
    /// The benchmark that comes nearest to the limit or exceeds it most; none where none was measured.
    pub benchmark: Option<String>,
    /// Its value.
    pub value: Option<f64>,
    /// Whether that is allowed.
    pub state: State,
}

/// What a gate limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The mean time, in seconds.
    MeanTime,
    /// The memory delta, in megabytes.
    MemoryDelta,
}

/// Whether a gate is met; in the order of how bad that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing to judge.
    NotJudged,
    /// Within the limit.
    Met,
    /// The mean is over the limit, and some rounds were not: the machine is too noisy to say.
    Undecided,
    /// Over the limit in every round.
    Missed,
}

impl State {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            State::Met => "met",
            State::Missed => "MISSED",
            State::Undecided => "undecided",
            State::NotJudged => "not judged",
        }
    }
}

/// What, of which quantity, the limit, and the benchmarks by how their names begin. An empty prefix means all fast questions.
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

/// Judges results. The times of a build without optimization are shown and not judged.
pub fn judge(results: &[Row], is_optimized: bool) -> Vec<Gate> {
    let gate = |(what, quantity, limit, prefix): (&str, Quantity, f64, &str)| {
        let covers = |row: &&Row| match prefix {
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
        // `least` is the fastest round: surely over the limit comes before perhaps over it, whatever the means.
        let judged = measured.map(|(row, value, least)| match (value < limit, least < limit) {
            (true, _) => (State::Met, value, row),
            (false, true) => (State::Undecided, value, row),
            (false, false) => (State::Missed, value, row),
        });
        let worst = judged.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let is_judged = is_optimized || quantity == Quantity::MemoryDelta;
        Gate {
            what: what.into(),
            quantity,
            limit,
            benchmark: worst.map(|(_, _, row)| row.name.clone()),
            value: worst.map(|(_, value, _)| value),
            state: worst.filter(|_| is_judged).map_or(State::NotJudged, |(state, ..)| state),
        }
    };
    RULES.map(gate).into()
}
