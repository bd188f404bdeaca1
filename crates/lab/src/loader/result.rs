//! What a run of the suite leaves behind: the fields that files of this kind have always had, and those that they lacked.

use super::against::Comparison;
use super::gates::{self, Gate, State};
use super::settings::Settings;
use super::{Benchmark, Category, NAME, fixtures::Fixtures, measure, real, registry};
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
    /// What must not take longer or more than it may.
    pub gates: Vec<Gate>,
    /// What changed since a baseline, where one was given.
    pub comparison: Option<Comparison>,
    /// The whole in a few numbers.
    pub summary: Summary,
}

/// A benchmark with what it gave.
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
    /// How long they took; nothing where an answer was wrong.
    #[serde(flatten)]
    pub times: Option<Times>,
    /// Megabytes of heap that were alive at most beyond those before; nothing where they were not counted.
    pub memory_delta_mb: Option<f64>,
    /// What else is good to know.
    pub metadata: BTreeMap<String, String>,
    /// What was answered, and what should have been.
    pub outcome: Outcome,
    /// Every iteration, in order.
    pub samples_ns: Vec<u64>,
    /// The most memory that the process held meanwhile.
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
    /// The one at place `⌊0.95 n⌋` of the sorted.
    pub p95_time: f64,
    /// The one at place `⌊0.99 n⌋` of the sorted.
    pub p99_time: f64,
    /// The mean of each round: how far they lie apart is what the machine does on its own.
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
    /// What should be answered.
    pub expected: String,
    /// What was.
    pub observed: String,
    /// Whether that is the same, in every iteration.
    pub ok: bool,
}

/// The whole in a few numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Benchmarks.
    pub total_benchmarks: usize,
    /// What they are about.
    pub categories: Vec<Category>,
    /// Those that answered wrongly.
    pub wrong_outcomes: usize,
    /// Gates that are missed, and those that the machine is too restless to decide.
    pub gates_missed: usize,
    /// Gates that lie within what the machine does on its own.
    pub gates_undecided: usize,
}

/// Makes the fixtures, measures, and judges.
///
/// # Errors
/// If the fixtures cannot be made, or the real model is not there.
pub fn run(settings: &Settings, heard: &mut dyn FnMut(&str)) -> Result<Run> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let fixtures = Fixtures::make()?;
    let mut benchmarks = chosen(&fixtures, settings)?;
    let results = measure::measure(&mut benchmarks, settings, heard);
    let model = settings.model.as_deref().unwrap_or(builtin::NAME);
    let model = if model == builtin::NAME { model.into() } else { pellucid_models::pull::resolve(model)? };
    Ok(Run::new(began, Environment::here(&model), settings.clone(), results))
}

/// The benchmarks that the settings ask for.
///
/// # Errors
/// As [`run`].
pub fn chosen(fixtures: &Fixtures, settings: &Settings) -> Result<Vec<Benchmark>> {
    let mut list = registry::all(fixtures)?;
    if let Some(model) = &settings.model {
        list.extend(real::benchmarks(model)?);
    }
    list.retain(|benchmark| settings.category.is_none_or(|category| category == benchmark.category));
    Ok(list)
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

    /// 1 where an answer is wrong, a gate is missed or something is slower than the baseline; 4 where the machine does not allow to say; else 0.
    pub fn exit_code(&self) -> i32 {
        let slower = self.comparison.as_ref().is_some_and(|comparison| comparison.reds().next().is_some());
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
