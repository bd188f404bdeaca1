//! The settings and the result of a run of the suite.

use super::compare::{Color, Comparison};
use super::directories::Directories;
use super::gates::{self, Gate, State};
use super::{Category, Hub, NAME, chosen, find_model, measure};
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

/// The variable for [`Settings::iterations`].
pub const ITERATIONS: &str = "BENCHMARK_ITERATIONS";
/// The variable for [`Settings::warmup`].
pub const WARMUP: &str = "BENCHMARK_WARMUP";
/// The variable for [`Settings::model`].
pub const MODEL: &str = "TEST_MODEL_PATH";

/// A run of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// What the suite calls itself.
    pub name: String,
    /// When it began, in UTC: `2026-01-30T08:00:00`.
    pub timestamp: String,
    /// The program and its build.
    pub runtime: String,
    /// The kind of system: `posix`, or what else it is.
    pub platform: String,
    /// The machine, the build and the model.
    pub env: Environment,
    /// How much was measured.
    pub settings: Settings,
    /// Every benchmark.
    pub results: Vec<Row>,
    /// The limits on time and memory.
    pub gates: Vec<Gate>,
    /// What changed since a baseline, where one was given.
    pub comparison: Option<Comparison>,
    /// Totals.
    pub summary: Summary,
}

/// A benchmark's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub category: Category,
    /// The function that was timed.
    pub function: String,
    /// Timed iterations.
    pub iterations: usize,
    /// Their times; none where an answer was wrong.
    #[serde(flatten)]
    pub times: Option<Times>,
    /// The peak of live heap beyond what was live before, in megabytes; none where it was not counted.
    pub memory_delta_mb: Option<f64>,
    /// The directory or the real model.
    pub metadata: BTreeMap<String, String>,
    /// The answer and the expected one.
    pub outcome: Outcome,
    /// Every iteration, in order.
    pub samples_ns: Vec<u64>,
    /// The peak of resident memory meanwhile.
    pub peak_rss_kb: Option<u64>,
    /// Heap allocations of one iteration.
    pub alloc_count: Option<u64>,
    /// Bytes that they asked for.
    pub alloc_bytes: Option<u64>,
}

/// The times of right answers, in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Of all iterations together.
    pub total_time: f64,
    /// The mean.
    pub mean_time: f64,
    /// The middle one.
    pub median_time: f64,
    /// The standard deviation; 0 of a single one.
    pub std_dev: f64,
    /// The shortest.
    pub min_time: f64,
    /// The longest.
    pub max_time: f64,
    /// The sample at index `⌊0.95 n⌋` of the sorted ones.
    pub p95_time: f64,
    /// The sample at index `⌊0.99 n⌋` of the sorted ones.
    pub p99_time: f64,
    /// The mean of each round; their spread is the machine's noise.
    pub round_means: Vec<f64>,
}

impl Times {
    /// The fastest and the slowest round.
    pub fn spread(&self) -> (f64, f64) {
        let ends =
            self.round_means.iter().fold((f64::INFINITY, 0.0f64), |(low, high), &mean| (low.min(mean), high.max(mean)));
        if self.round_means.is_empty() { (self.mean_time, self.mean_time) } else { ends }
    }
}

/// An answer beside the right one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The right answer.
    pub expected: String,
    /// The first wrong answer, or the right one.
    pub observed: String,
    /// Whether every iteration gave the right answer.
    pub ok: bool,
}

/// Totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Benchmarks.
    pub total_benchmarks: usize,
    /// The categories that were measured.
    pub categories: Vec<Category>,
    /// Those with a wrong answer.
    pub wrong_outcomes: usize,
    /// Gates that are missed.
    pub gates_missed: usize,
    /// Gates that lie within the machine's noise.
    pub gates_undecided: usize,
}

/// How much is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Timed iterations of each benchmark; those that take milliseconds get a tenth.
    pub iterations: usize,
    /// Iterations before them that are not timed.
    pub warmup: usize,
    /// Whether the allocations of every benchmark are counted, and not only of those about memory.
    pub memory_profiling: bool,
    /// The only category that is measured; none means all.
    pub category: Option<Category>,
    /// A real model that is inspected and loaded, too.
    pub model: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { iterations: 100, warmup: 10, memory_profiling: false, category: None, model: None }
    }
}

impl Settings {
    /// Arguments override what `variable` finds in the environment, and that overrides the defaults.
    ///
    /// # Errors
    /// If a variable that is needed is not a number, or if nothing would be timed.
    pub fn new(
        iterations: Option<usize>,
        warmup: Option<usize>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings> {
        let fail = |problem: String| Error::Suite { suite: NAME.into(), problem };
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let count = |argument: Option<usize>, name: &str, default: usize| match (argument, set(name)) {
            (Some(argument), _) => Ok(argument),
            (None, Some(text)) => {
                text.trim().parse().map_err(|_| fail(format!("{name} is `{text}`, not a number of iterations")))
            }
            (None, None) => Ok(default),
        };
        let default = Settings::default();
        let settings = Settings {
            iterations: count(iterations, ITERATIONS, default.iterations)?,
            warmup: count(warmup, WARMUP, default.warmup)?,
            model: set(MODEL),
            ..default
        };
        match settings.iterations {
            0 => Err(fail(format!("0 iterations measure nothing: give --iterations or {ITERATIONS} of at least 1"))),
            _ => Ok(settings),
        }
    }
}

/// Makes the directories, measures, and judges. Benchmarks that download are left out where there is no hub.
///
/// # Errors
/// If the directories cannot be made, or the real model is not there.
pub fn run(settings: &Settings, hub: Option<&Hub>) -> Result<Run> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let directories = Directories::make()?;
    let results = measure::measure(&chosen(&directories, settings, hub.is_some())?, settings, hub);
    let model = match settings.model.as_deref() {
        Some(model) if model != builtin::NAME => find_model(model)?,
        _ => builtin::NAME.into(),
    };
    Ok(Run::new(began, Environment::here(&model), settings.clone(), results))
}

impl Run {
    /// A run of these results, judged by the gates.
    pub fn new(began: u64, env: Environment, settings: Settings, results: Vec<Row>) -> Run {
        let build = env.hard.get("build").map_or("", String::as_str);
        let gates = gates::judge(&results, build == "release");
        let count = |state: State| gates.iter().filter(|gate| gate.state == state).count();
        let mut categories: Vec<Category> = results.iter().map(|row| row.category).collect();
        categories.sort_unstable();
        categories.dedup();
        let summary = Summary {
            total_benchmarks: results.len(),
            categories,
            wrong_outcomes: results.iter().filter(|row| !row.outcome.ok).count(),
            gates_missed: count(State::Missed),
            gates_undecided: count(State::Undecided),
        };
        Run {
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

    /// 1 where an answer is wrong, a gate is missed or a benchmark is red; 4 where a gate is undecided; else 0.
    pub fn exit_code(&self) -> i32 {
        let slower = self.comparison.as_ref().is_some_and(|comparison| comparison.count(Color::Red) > 0);
        if self.summary.wrong_outcomes > 0 || self.summary.gates_missed > 0 || slower {
            return 1;
        }
        if self.summary.gates_undecided > 0 { 4 } else { 0 }
    }
}

/// Reads a file of this format.
///
/// # Errors
/// If it cannot be read, or is of another format.
pub fn read(path: &Path) -> Result<Run> {
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
