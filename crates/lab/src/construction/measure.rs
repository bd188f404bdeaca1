//! The parent process: runs pairs of a fixture's child and an empty child in alternating order, and
//! computes the differences.

use super::child::{BuildMeasurement, ChildAnswer, FixtureRequest, Phase};
use super::{Category, Fixture, Kind, NONE, Scope};
use crate::executor::{FailureKind, run_process};
use crate::stats::{self, Estimate, Rng};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Version of the format of [`ConstructionResult`].
pub const SCHEMA: &str = "pellucid/lab-construction/v1";
/// Time limit of an empty process.
pub const BASELINE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of a fixture.
pub const FIXTURE_LIMIT: Duration = Duration::from_secs(120);

/// A child's answer and its wall time in seconds, or its failure.
pub type ChildResult = Result<(ChildAnswer, f64), (FailureKind, String)>;

/// Starts child processes; tests simulate them.
pub trait Children {
    /// Runs the child of a fixture, or the empty child.
    fn run(&mut self, fixture: &str, limit: Duration) -> ChildResult;
}

/// Children that are processes of the Pellucid executable.
pub struct Processes {
    /// The executable, started as `lab __fixture`.
    pub pellucid: PathBuf,
}

impl Children for Processes {
    fn run(&mut self, fixture: &str, limit: Duration) -> ChildResult {
        // The empty child is started by the same command, so that only the construction differs.
        let mut command = Command::new(&self.pellucid);
        command.args(["lab", "__fixture"]);
        run_process(&mut command, &FixtureRequest { fixture: fixture.into() }, limit)
    }
}

/// Result of the suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstructionResult {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// Time of creation, Unix seconds.
    pub generated: u64,
    /// Why the result is invalid, if it is.
    pub invalid: Option<String>,
    /// One entry per fixture, in the order of the registry.
    pub rows: Vec<FixtureResult>,
}

/// Measurements of one fixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FixtureResult {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its scope.
    pub scope: Scope,
    /// Its category.
    pub category: Category,
    /// The model that it loads.
    pub model: Option<String>,
    /// Its cost, if construction succeeded.
    pub cost: Option<Cost>,
    /// The error, if construction failed.
    pub error: Option<String>,
    /// Every pair of children.
    pub pairs: Vec<Pair>,
}

/// A fixture's child and its empty counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Wall seconds of the fixture's child.
    pub wall_s: f64,
    /// Wall seconds of the empty child.
    pub empty_s: f64,
    /// The fixture's own measurements.
    pub built: BuildMeasurement,
    /// Resident bytes of the empty child at its end.
    pub empty_resident: u64,
}

/// Cost of constructing a fixture, as medians over its pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Number of pairs.
    pub runs: usize,
    /// Seconds more than the empty child; noise can make it negative.
    pub init_s: f64,
    /// Median absolute deviation of that difference.
    pub init_mad_s: f64,
    /// Mean of that difference with its 95 % confidence interval.
    pub init: Estimate,
    /// Resident bytes at the end minus the empty child's.
    pub memory: f64,
    /// Peak resident bytes of the process.
    pub peak: f64,
    /// Anonymous bytes at the end.
    pub anonymous: f64,
    /// Seconds of loading a model.
    pub load_s: f64,
    /// Seconds of building inputs and plans.
    pub prepare_s: f64,
    /// Seconds of running.
    pub run_s: f64,
}

/// Measures `runs` pairs of each fixture, in a random order given by the seed. `on_pair` is called
/// before each pair.
pub fn measure(
    fixtures: &[&Fixture],
    runs: usize,
    seed: u64,
    children: &mut dyn Children,
    on_pair: &mut dyn FnMut(&str, usize),
) -> ConstructionResult {
    let mut random = Rng::new(seed);
    let mut rows: Vec<FixtureResult> = fixtures.iter().map(|fixture| FixtureResult::new(fixture)).collect();
    let mut invalid = None;
    'rounds: for round in 0..runs {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        random.shuffle(&mut order);
        for index in order.into_iter().filter(|index| rows[*index].error.is_none()).collect::<Vec<_>>() {
            let row = &mut rows[index];
            on_pair(&row.name, round);
            let empty_first = round.is_multiple_of(2);
            let empty = |children: &mut dyn Children| children.run(NONE, BASELINE_LIMIT);
            let before = empty_first.then(|| empty(children));
            let built = children.run(&row.name, FIXTURE_LIMIT);
            let empty_result = before.unwrap_or_else(|| empty(children));
            match (empty_result, built) {
                (Ok((ChildAnswer::Built(baseline), empty_s)), Ok((ChildAnswer::Built(built), wall_s))) => {
                    row.pairs.push(Pair { wall_s, empty_s, built, empty_resident: baseline.resident });
                }
                // Without the empty child's baseline no difference can be computed.
                (Err((kind, message)), _) => {
                    invalid = Some(format!("the empty process {}: {message}", kind.name()));
                    break 'rounds;
                }
                (Ok((ChildAnswer::Failed { message, .. }, _)), _) => {
                    invalid = Some(format!("the empty process failed: {message}"));
                    break 'rounds;
                }
                (_, built) => row.error = Some(error_text(built)),
            }
        }
    }
    for row in &mut rows {
        row.cost = row.error.is_none().then(|| summarize(&row.pairs, seed)).flatten();
        if row.cost.is_none() && row.error.is_none() {
            row.error = Some("Fixture function not found (not run)".into());
        }
    }
    let generated = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    ConstructionResult { schema: SCHEMA.into(), generated, invalid, rows }
}

/// Returns the wall seconds of `times` empty processes.
pub fn startup(times: usize, children: &mut dyn Children) -> Result<Vec<f64>, String> {
    let once = |_| match children.run(NONE, BASELINE_LIMIT) {
        Ok((ChildAnswer::Built(_), seconds)) => Ok(seconds),
        Ok((ChildAnswer::Failed { message, .. }, _)) => Err(format!("the empty process failed: {message}")),
        Err((kind, message)) => Err(format!("the empty process {}: {message}", kind.name())),
    };
    (0..times).map(once).collect()
}

impl FixtureResult {
    fn new(fixture: &Fixture) -> FixtureResult {
        FixtureResult {
            name: fixture.name.into(),
            kind: fixture.kind,
            scope: fixture.scope,
            category: fixture.category,
            model: fixture.model.map(String::from),
            cost: None,
            error: None,
            pairs: Vec::new(),
        }
    }
}

/// Describes a fixture's failure for the report.
fn error_text(result: ChildResult) -> String {
    let first = |message: &str, max_chars: usize| {
        message.lines().next().unwrap_or_default().chars().take(max_chars).collect::<String>()
    };
    match result {
        Ok((ChildAnswer::Built(_), _)) => "Benchmark error".into(),
        Ok((ChildAnswer::Failed { phase: None, .. }, _)) => "Fixture not found".into(),
        Ok((ChildAnswer::Failed { phase: Some(Phase::Run), message }, _)) => format!("Error: {}", first(&message, 50)),
        Ok((ChildAnswer::Failed { message, .. }, _)) => format!("Setup error: {}", first(&message, 50)),
        Err((FailureKind::Timeout, _)) => format!("Timeout (>{}min)", FIXTURE_LIMIT.as_secs() / 60),
        Err((FailureKind::InvalidAnswer, _)) => "Incomplete benchmark results".into(),
        Err((FailureKind::Killed, message)) => format!("Test failed: {}", first(&message, 100)),
        Err((FailureKind::Error, _)) => "Test had errors".into(),
        Err((FailureKind::Start, _)) => "Benchmark error".into(),
    }
}

fn summarize(pairs: &[Pair], seed: u64) -> Option<Cost> {
    if pairs.is_empty() {
        return None;
    }
    let all = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
    let median = |of: fn(&Pair) -> f64| stats::median(&all(of));
    let overhead = all(|pair| pair.wall_s - pair.empty_s);
    Some(Cost {
        runs: pairs.len(),
        init_s: stats::median(&overhead),
        init_mad_s: stats::median_absolute_deviation(&overhead),
        init: stats::confidence_interval(&overhead, seed),
        memory: median(|pair| pair.built.resident as f64 - pair.empty_resident as f64),
        peak: median(|pair| pair.built.peak as f64),
        anonymous: median(|pair| pair.built.anonymous as f64),
        load_s: median(|pair| pair.built.load_s),
        prepare_s: median(|pair| pair.built.prepare_s),
        run_s: median(|pair| pair.built.run_s),
    })
}
