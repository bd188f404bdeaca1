//! The parent's side: pairs of a fixture's child and an empty one, in alternating order, and what follows from them.

use super::child::{Answer, Built, Phase, Wanted};
use super::{Category, Fixture, Kind, NONE, Scope};
use crate::executor::{Failing, run_process};
use crate::stats::{self, Estimate, Random};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The version of the format of [`Survey`].
pub const SCHEMA: &str = "pellucid/lab-construction/v1";
/// How long an empty process may take.
pub const BASELINE_LIMIT: Duration = Duration::from_secs(30);
/// How long a fixture may take.
pub const FIXTURE_LIMIT: Duration = Duration::from_secs(120);

/// A child that ended as it should: what it answered, and the seconds from its start to its end.
pub type Ended = Result<(Answer, f64), (Failing, String)>;

/// Starts children; tests simulate them.
pub trait Children {
    /// Runs the child of a fixture, or of nothing, to its end.
    fn run(&mut self, fixture: &str, limit: Duration) -> Ended;
}

/// Children that are processes of an executable of ours.
pub struct Processes {
    /// The executable, started as `lab __fixture`.
    pub pellucid: PathBuf,
}

impl Children for Processes {
    fn run(&mut self, fixture: &str, limit: Duration) -> Ended {
        // The same command for every child, the empty one included: only what it is asked differs.
        let mut command = Command::new(&self.pellucid);
        command.args(["lab", "__fixture"]);
        run_process(&mut command, &Wanted { fixture: fixture.into() }, limit)
    }
}

/// What a run of the suite found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survey {
    /// The format, [`SCHEMA`].
    pub schema: String,
    /// When it was made, seconds since 1970.
    pub generated: u64,
    /// Why nothing of it can be believed; none where it can.
    pub invalid: Option<String>,
    /// Every fixture, in the order of discovery.
    pub rows: Vec<Row>,
}

/// A fixture with what was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Its scope.
    pub scope: Scope,
    /// Its category.
    pub category: Category,
    /// The model that it needs.
    pub model: Option<String>,
    /// What it costs, where it could be constructed.
    pub cost: Option<Cost>,
    /// Why it could not.
    pub error: Option<String>,
    /// Every pair of children.
    pub pairs: Vec<Pair>,
}

/// A fixture's child and the empty one beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Seconds of the fixture's child.
    pub wall_s: f64,
    /// Seconds of the empty one.
    pub empty_s: f64,
    /// What the fixture's child said of itself.
    pub built: Built,
    /// Bytes that the empty one held at its end.
    pub empty_resident: u64,
}

/// What constructing a fixture costs, as medians over its pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Pairs.
    pub runs: usize,
    /// Seconds of the child beyond the empty one; below zero where noise says so.
    pub init_s: f64,
    /// The median distance from it.
    pub init_mad_s: f64,
    /// The mean of the same, with its 95 % interval.
    pub init: Estimate,
    /// Bytes at the end beyond the empty child's.
    pub memory: f64,
    /// Bytes at the highest, of the whole process.
    pub peak: f64,
    /// Bytes at the end that no file backs.
    pub anonymous: f64,
    /// Seconds of reading a model.
    pub load_s: f64,
    /// Seconds of making inputs and plans.
    pub prepare_s: f64,
    /// Seconds of running.
    pub run_s: f64,
}

/// Measures fixtures: `runs` pairs of each, in an order that the seed decides. `on_pair` is called before each pair.
pub fn measure(
    fixtures: &[&Fixture],
    runs: usize,
    seed: u64,
    children: &mut dyn Children,
    on_pair: &mut dyn FnMut(&str, usize),
) -> Survey {
    let mut random = Random::new(seed);
    let mut rows: Vec<Row> = fixtures.iter().map(|fixture| Row::new(fixture)).collect();
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
            let beside = before.unwrap_or_else(|| empty(children));
            match (beside, built) {
                (Ok((Answer::Built(nothing), empty_s)), Ok((Answer::Built(built), wall_s))) => {
                    row.pairs.push(Pair { wall_s, empty_s, built, empty_resident: nothing.resident });
                }
                // Without something to subtract no number means anything.
                (Err((how, said)), _) => {
                    invalid = Some(format!("the empty process {}: {said}", how.name()));
                    break 'rounds;
                }
                (Ok((Answer::Failed { said, .. }, _)), _) => {
                    invalid = Some(format!("the empty process failed: {said}"));
                    break 'rounds;
                }
                (_, built) => row.error = Some(error_text(built)),
            }
        }
    }
    for row in &mut rows {
        row.cost = row.error.is_none().then(|| cost(&row.pairs, seed)).flatten();
        if row.cost.is_none() && row.error.is_none() {
            row.error = Some("Fixture function not found (not run)".into());
        }
    }
    let generated = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    Survey { schema: SCHEMA.into(), generated, invalid, rows }
}

/// What starting an empty process takes, several times over, in seconds.
pub fn startup(times: usize, children: &mut dyn Children) -> Result<Vec<f64>, String> {
    let once = |_| match children.run(NONE, BASELINE_LIMIT) {
        Ok((Answer::Built(_), seconds)) => Ok(seconds),
        Ok((Answer::Failed { said, .. }, _)) => Err(format!("the empty process failed: {said}")),
        Err((how, said)) => Err(format!("the empty process {}: {said}", how.name())),
    };
    (0..times).map(once).collect()
}

impl Row {
    fn new(fixture: &Fixture) -> Row {
        Row {
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

/// How a fixture failed, in the words of the report.
fn error_text(ended: Ended) -> String {
    let first =
        |said: &str, most: usize| said.lines().next().unwrap_or_default().chars().take(most).collect::<String>();
    match ended {
        Ok((Answer::Built(_), _)) => "Benchmark error".into(),
        Ok((Answer::Failed { phase: None, .. }, _)) => "Fixture not found".into(),
        Ok((Answer::Failed { phase: Some(Phase::Run), said }, _)) => format!("Error: {}", first(&said, 50)),
        Ok((Answer::Failed { said, .. }, _)) => format!("Setup error: {}", first(&said, 50)),
        Err((Failing::Timeout, _)) => format!("Timeout (>{}min)", FIXTURE_LIMIT.as_secs() / 60),
        Err((Failing::Garbage, _)) => "Incomplete benchmark results".into(),
        Err((Failing::Killed, said)) => format!("Test failed: {}", first(&said, 100)),
        Err((Failing::Error, _)) => "Test had errors".into(),
        Err((Failing::Start, _)) => "Benchmark error".into(),
    }
}

fn cost(pairs: &[Pair], seed: u64) -> Option<Cost> {
    if pairs.is_empty() {
        return None;
    }
    let all = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<f64>>();
    let middle = |of: fn(&Pair) -> f64| stats::median(&all(of));
    let beyond = all(|pair| pair.wall_s - pair.empty_s);
    Some(Cost {
        runs: pairs.len(),
        init_s: stats::median(&beyond),
        init_mad_s: stats::median_deviation(&beyond),
        init: stats::interval(&beyond, seed),
        memory: middle(|pair| pair.built.resident as f64 - pair.empty_resident as f64),
        peak: middle(|pair| pair.built.peak as f64),
        anonymous: middle(|pair| pair.built.anonymous as f64),
        load_s: middle(|pair| pair.built.load_s),
        prepare_s: middle(|pair| pair.built.prepare_s),
        run_s: middle(|pair| pair.built.run_s),
    })
}
