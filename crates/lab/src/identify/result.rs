//! Settings and result of the suite.

use super::compare::{BaselineComparison, Color};
use super::directories::Directories;
use super::gates::{self, Gate, GateState};
use super::{Category, Hub, NAME, find_model, measure, select_benchmarks};
use crate::environment::Environment;
use crate::report::date;
use crate::{Error, Result};
use pellucid_models::builtin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the format.
pub const SCHEMA: &str = "pellucid/lab-loader/v1";
/// Its JSON Schema.
pub const SCHEMA_TEXT: &str = include_str!("../../schema/lab-loader-v1.json");

/// Environment variable for [`IdentifySettings::iterations`].
pub const ITERATIONS: &str = "BENCHMARK_ITERATIONS";
/// Environment variable for [`IdentifySettings::warmup`].
pub const WARMUP: &str = "BENCHMARK_WARMUP";
/// Environment variable for [`IdentifySettings::model`].
pub const MODEL: &str = "TEST_MODEL_PATH";

/// Result of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdentifyResult {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// Title of the suite.
    pub name: String,
    /// Start time in UTC: `2026-01-30T08:00:00`.
    pub timestamp: String,
    /// The program and its build.
    pub runtime: String,
    /// Kind of operating system: `posix` or its name.
    pub platform: String,
    /// The machine, the build and the model.
    pub env: Environment,
    /// Iterations and selection.
    pub settings: IdentifySettings,
    /// Every benchmark.
    pub results: Vec<BenchmarkResult>,
    /// The limits on time and memory.
    pub gates: Vec<Gate>,
    /// Changes since a baseline, if one was given.
    pub comparison: Option<BaselineComparison>,
    /// Totals.
    pub summary: Summary,
}

/// A benchmark's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkResult {
    /// Its name.
    pub name: String,
    /// Its category.
    pub category: Category,
    /// The function that was timed.
    pub function: String,
    /// Timed iterations.
    pub iterations: usize,
    /// Time statistics; `None` if an answer was wrong.
    #[serde(flatten)]
    pub times: Option<Times>,
    /// Peak of live heap above that before the call, in megabytes; `None` if not counted.
    pub memory_delta_mb: Option<f64>,
    /// Name of the directory or of the real model.
    pub metadata: BTreeMap<String, String>,
    /// The expected and the observed answer.
    pub outcome: CheckedAnswer,
    /// Nanoseconds of every iteration, in order.
    pub samples_ns: Vec<u64>,
    /// Peak RSS during the rounds.
    pub peak_rss_kb: Option<u64>,
    /// Heap allocations of one iteration.
    pub alloc_count: Option<u64>,
    /// Bytes allocated in one iteration.
    pub alloc_bytes: Option<u64>,
}

/// Time statistics of correct answers, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Total of all iterations.
    pub total_time: f64,
    /// The mean.
    pub mean_time: f64,
    /// The median.
    pub median_time: f64,
    /// The standard deviation; 0 for a single sample.
    pub std_dev: f64,
    /// The minimum.
    pub min_time: f64,
    /// The maximum.
    pub max_time: f64,
    /// The sample at index `⌊0.95 n⌋` of the sorted ones.
    pub p95_time: f64,
    /// The sample at index `⌊0.99 n⌋` of the sorted ones.
    pub p99_time: f64,
    /// Mean of each round; their range shows the noise.
    pub round_means: Vec<f64>,
}

impl Times {
    /// Returns the means of the fastest and the slowest round.
    pub fn spread(&self) -> (f64, f64) {
        let ends =
            self.round_means.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &mean| (low.min(mean), high.max(mean)));
        if self.round_means.is_empty() { (self.mean_time, self.mean_time) } else { ends }
    }
}

/// Expected and observed answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedAnswer {
    /// The expected answer.
    pub expected: String,
    /// The first wrong answer, or the expected one.
    pub observed: String,
    /// Whether every iteration gave the expected answer.
    pub ok: bool,
}

/// Totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of benchmarks.
    pub total_benchmarks: usize,
    /// Measured categories.
    pub categories: Vec<Category>,
    /// Benchmarks with a wrong answer.
    pub wrong_outcomes: usize,
    /// Missed gates.
    pub gates_missed: usize,
    /// Undecided gates.
    pub gates_undecided: usize,
}

/// Iterations and selection of benchmarks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdentifySettings {
    /// Timed iterations of each benchmark; those that take milliseconds get a tenth.
    pub iterations: usize,
    /// Untimed warm-up iterations.
    pub warmup: usize,
    /// Count the allocations of every benchmark, not only of the category `memory`.
    pub memory_profiling: bool,
    /// Category to measure; `None` means all.
    pub category: Option<Category>,
    /// A real model to inspect and load.
    pub model: Option<String>,
}

impl Default for IdentifySettings {
    fn default() -> IdentifySettings {
        IdentifySettings { iterations: 100, warmup: 10, memory_profiling: false, category: None, model: None }
    }
}

impl IdentifySettings {
    /// Combines arguments, environment variables (read with `variable`) and defaults, in this order
    /// of precedence.
    ///
    /// # Errors If a needed variable is not a number, or the number of iterations is 0.
    pub fn new(
        iterations: Option<usize>,
        warmup: Option<usize>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<IdentifySettings> {
        let fail = |problem: String| Error::Suite { suite: NAME.into(), problem };
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let count = |argument: Option<usize>, name: &str, default: usize| match (argument, set(name)) {
            (Some(argument), _) => Ok(argument),
            (None, Some(text)) => {
                text.trim().parse().map_err(|_| fail(format!("{name} is `{text}`, not a number of iterations")))
            }
            (None, None) => Ok(default),
        };
        let default = IdentifySettings::default();
        let settings = IdentifySettings {
            iterations: count(iterations, ITERATIONS, default.iterations)?,
            warmup: count(warmup, WARMUP, default.warmup)?,
            model: set(MODEL),
            ..default
        };
        match settings.iterations {
            0 => Err(fail(format!("0 iterations measure nothing: set --iterations or {ITERATIONS} to at least 1"))),
            _ => Ok(settings),
        }
    }
}

/// Creates the directories, runs the benchmarks and evaluates the gates. Download benchmarks need
/// `hub`.
///
/// # Errors If the directories cannot be created, or the real model is missing.
pub fn run(settings: &IdentifySettings, hub: Option<&Hub>) -> Result<IdentifyResult> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let directories = Directories::create()?;
    let results = measure::measure(&select_benchmarks(&directories, settings, hub.is_some())?, settings, hub);
    let model = match settings.model.as_deref() {
        Some(model) if model != builtin::NAME => find_model(model)?,
        _ => builtin::NAME.into(),
    };
    Ok(IdentifyResult::new(began, Environment::detect(&model), settings.clone(), results))
}

impl IdentifyResult {
    /// Builds the result from measured benchmarks and evaluates the gates.
    pub fn new(
        began: u64,
        env: Environment,
        settings: IdentifySettings,
        results: Vec<BenchmarkResult>,
    ) -> IdentifyResult {
        let build = env.hard.get("build").map_or("", String::as_str);
        let gates = gates::judge(&results, build == "release");
        let count = |state: GateState| gates.iter().filter(|gate| gate.state == state).count();
        let mut categories: Vec<Category> = results.iter().map(|row| row.category).collect();
        categories.sort_unstable();
        categories.dedup();
        let summary = Summary {
            total_benchmarks: results.len(),
            categories,
            wrong_outcomes: results.iter().filter(|row| !row.outcome.ok).count(),
            gates_missed: count(GateState::Missed),
            gates_undecided: count(GateState::Undecided),
        };
        IdentifyResult {
            schema: SCHEMA.into(),
            name: "Pellucid Loader Benchmark Suite".into(),
            timestamp: date(began).trim_end_matches(" UTC").replace(' ', "T"),
            runtime: format!("pellucid {} ({build})", env!("CARGO_PKG_VERSION")),
            platform: if cfg!(unix) { "posix".into() } else { std::env::consts::OS.into() },
            env,
            settings,
            results,
            gates,
            comparison: None,
            summary,
        }
    }

    /// Returns the exit code: 1 for a wrong answer, a missed gate or a red benchmark; 4 for an
    /// undecided gate; else 0.
    pub fn exit_code(&self) -> i32 {
        let slower = self.comparison.as_ref().is_some_and(|comparison| comparison.count(Color::Red) > 0);
        if self.summary.wrong_outcomes > 0 || self.summary.gates_missed > 0 || slower {
            return 1;
        }
        if self.summary.gates_undecided > 0 { 4 } else { 0 }
    }
}

/// Reads a result file.
///
/// # Errors If it cannot be read or has another format.
pub fn read(path: &Path) -> Result<IdentifyResult> {
    let fail = |problem: String| Error::File { path: path.display().to_string(), problem };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let not = |error: serde_json::Error| fail(format!("not a result of `lab {NAME}`: {error}"));
    let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(not)?;
    match value.get("schema").and_then(|schema| schema.as_str()) {
        Some(SCHEMA) => serde_json::from_value(value).map_err(not),
        Some(other) => Err(fail(format!("its format is {other}, `lab {NAME}` reads {SCHEMA}"))),
        None => Err(fail(format!("not a result of `lab {NAME}`: it names no schema"))),
    }
}
