//! A session: pairs of fresh processes in random ABBA order, until every comparison is precise enough or the budget is spent.
//!
//! Every workload has an arm for each variant, which is compared with the reference pair by pair, and one arm of the reference against
//! itself, which tells what this machine does by itself. The arms take turns, so drift falls on all of them.

use crate::check::{self, State};
use crate::environment::Environment;
use crate::executor::{Executor, Outcome};
use crate::protocol::{Answer, Job, Request};
use crate::result::{Cell, Comparison, CostModel, Counted, Run, SCHEMA, Session, SessionResult};
use crate::stats::{self, Random};
use crate::suite::{Metric, Suite, Variant, WorkerKind, Workload};
use crate::verdict::{Verdict, judge, pairs_needed};
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// What a session needs beside its suite.
pub struct Setting {
    /// The model's directory or file.
    pub model: PathBuf,
    /// The family that a model of an unknown type is read as.
    pub assume: Option<String>,
    /// The seed of the order.
    pub seed: u64,
    /// The machine.
    pub environment: Environment,
    /// The command that asked for it.
    pub command: Vec<String>,
    /// Runs of an interrupted session of the same suite and seed.
    pub earlier: Vec<Run>,
}

/// What a session tells while it runs.
pub struct Progress<'a> {
    /// The process that has just ended.
    pub run: &'a Run,
    /// The comparison that it belongs to, as it stands.
    pub so_far: Option<Comparison>,
    /// The share of the session that is done, by its budget or its pairs.
    pub done: f64,
}

/// An arm: a workload, and who is compared with whom.
struct Arm<'s> {
    workload: &'s Workload,
    before: &'s Variant,
    after: &'s Variant,
    /// `before` goes first in even pairs.
    before_first: bool,
}

/// An arm's name.
fn arm_name(before: &Variant, after: &Variant) -> String {
    format!("{} → {}", before.id, after.id)
}

/// Runs a suite. `heard` is told after every process, with its raw result, so that nothing is lost when the session is cut short.
pub fn run(
    suite: &Suite,
    setting: Setting,
    executor: &mut dyn Executor,
    heard: &mut dyn FnMut(&Progress),
) -> crate::Result<SessionResult> {
    suite.check()?;
    let mut random = Random::new(setting.seed);
    let mut arms = Vec::new();
    for workload in &suite.workloads {
        for (before, after) in suite.arms(workload) {
            arms.push(Arm { workload, before, after, before_first: random.bits() & 1 == 0 });
        }
    }
    let mut state = Running { suite, setting: &setting, runs: Vec::new(), truths: HashMap::new() };
    let mut earlier: HashMap<(String, String, usize, bool), Run> = setting
        .earlier
        .iter()
        .map(|run| ((run.workload.clone(), run.arm.clone(), run.pair, run.is_reference), run.clone()))
        .collect();
    let mut ended_early = String::new();
    'rounds: for pair in 0..suite.precision.pairs {
        let mut order: Vec<usize> = (0..arms.len()).filter(|&arm| state.needs_more(&arms[arm], pair)).collect();
        if order.is_empty() {
            break;
        }
        random.shuffle(&mut order);
        for arm in order {
            let arm = &arms[arm];
            // Pairs alternate within an arm: A B, B A, A B, …
            let first = arm.before_first == pair.is_multiple_of(2);
            for is_reference in [first, !first] {
                if executor.elapsed() > suite.precision.budget_s {
                    ended_early = format!("the budget of {} s is spent", suite.precision.budget_s);
                    break 'rounds;
                }
                let key = (arm.workload.id.clone(), arm_name(arm.before, arm.after), pair, is_reference);
                let run = match earlier.remove(&key) {
                    Some(run) => state.keep(run),
                    None => state.one(arm, pair, is_reference, executor),
                };
                let so_far = state.comparison(arm, Metric::Time, None);
                let done = (executor.elapsed() / suite.precision.budget_s)
                    .max((pair as f64 + 0.5) / suite.precision.pairs as f64)
                    .min(1.0);
                heard(&Progress { run: &run, so_far, done });
                state.runs.push(run);
            }
        }
    }
    let seconds = executor.elapsed();
    Ok(state.finish(seconds, ended_early))
}

/// Counts the heap allocations of one run of every variant of ours on every workload, each in a process of its own that gives no time.
/// A variant whose worker fails or cannot count is left out.
pub fn count_allocations(suite: &Suite, setting: &Setting, executor: &mut dyn Executor) -> Vec<Counted> {
    let mut counted = Vec::new();
    for workload in &suite.workloads {
        for variant in suite.participants(workload).into_iter().filter(|v| v.worker == WorkerKind::Pellucid) {
            let mut asked = variant.clone();
            asked.env.insert(crate::counting::ASK.into(), "1".into());
            let request = Request { repeats: 1, ..request(suite, setting, workload, variant) };
            let limit = Duration::from_secs_f64(suite.precision.timeout_s);
            if let Outcome::Answered(answer) = executor.run(&asked, &request, limit)
                && let Some(allocations) = answer.allocations
            {
                counted.push(Counted { workload: workload.id.clone(), variant: variant.id.clone(), allocations });
            }
        }
    }
    counted
}

/// What a variant's worker is asked on a workload.
fn request(suite: &Suite, setting: &Setting, workload: &Workload, variant: &Variant) -> Request {
    // Any fixed tokens do, if neighbours differ and every vocabulary has them: the smallest model of the tests knows 96.
    let tokens = (0..workload.tokens).map(|i| (20 + i * 37 % 73) as u32).collect();
    Request {
        model: workload.model.as_ref().map_or_else(|| setting.model.clone(), PathBuf::from),
        dtype: variant.dtype.clone(),
        threads: variant.threads,
        assume: setting.assume.clone(),
        job: suite.job(workload, variant),
        tokens,
        warmups: workload.warmups,
        repeats: workload.repeats,
    }
}

struct Running<'s> {
    suite: &'s Suite,
    setting: &'s Setting,
    runs: Vec<Run>,
    /// The oracle's first answer to each workload.
    truths: HashMap<String, Answer>,
}

impl Running<'_> {
    /// Whether an arm's interval is still too wide.
    fn needs_more(&self, arm: &Arm, pairs: usize) -> bool {
        if pairs < self.suite.precision.least_pairs {
            return true;
        }
        let target = self.suite.precision.half_width;
        arm.workload.metrics.iter().any(|&metric| {
            let comparison = self.comparison(arm, metric, None);
            // An arm that cannot be measured is not measured again and again.
            comparison.is_some_and(|comparison| comparison.log_ratio.half_width() > target)
        })
    }

    fn one(&mut self, arm: &Arm, pair: usize, is_reference: bool, executor: &mut dyn Executor) -> Run {
        let suite = self.suite;
        let variant = if is_reference { arm.before } else { arm.after };
        let request = self.request(arm.workload, variant);
        let at_s = executor.elapsed();
        let limit = Duration::from_secs_f64(suite.precision.timeout_s);
        let outcome = executor.run(variant, &request, limit);
        let (answer, failed) = match outcome {
            Outcome::Answered(answer) => (Some(*answer), None),
            Outcome::Failed { how, said } => (None, Some((how, said))),
        };
        self.keep(Run {
            workload: arm.workload.id.clone(),
            arm: arm_name(arm.before, arm.after),
            pair,
            is_reference,
            place: self.runs.len(),
            variant: variant.id.clone(),
            at_s,
            answer,
            failed,
            check: None,
        })
    }

    /// Takes a run in: the oracle's first answer becomes the truth that later ones are checked against.
    fn keep(&mut self, mut run: Run) -> Run {
        run.place = self.runs.len();
        if let Some(answer) = &run.answer
            && run.variant == self.suite.oracle()
        {
            self.truths.entry(run.workload.clone()).or_insert_with(|| answer.clone());
        }
        run
    }

    fn request(&self, workload: &Workload, variant: &Variant) -> Request {
        request(self.suite, self.setting, workload, variant)
    }

    /// A comparison as it stands, given the noise of its workload.
    fn comparison(&self, arm: &Arm, metric: Metric, noise: Option<f64>) -> Option<Comparison> {
        let (workload, name) = (arm.workload, arm_name(arm.before, arm.after));
        let of_arm = |run: &&Run| run.workload == workload.id && run.arm == name;
        let runs: Vec<&Run> = self.runs.iter().filter(of_arm).collect();
        let side = |is_reference: bool| {
            let side = runs.iter().filter(move |run| run.is_reference == is_reference);
            side.filter_map(|run| Some((run.pair, run.value(metric)?))).collect::<HashMap<usize, f64>>()
        };
        let (before, after) = (side(true), side(false));
        let mut pairs: Vec<usize> = before.keys().filter(|pair| after.contains_key(pair)).copied().collect();
        pairs.sort_unstable();
        if pairs.is_empty() {
            return None;
        }
        let ratios: Vec<f64> = pairs.iter().map(|pair| (after[pair] / before[pair]).ln()).collect();
        let log_ratio = stats::interval(&ratios, self.setting.seed);
        let (margin, noise) = (self.suite.margin(workload), noise.unwrap_or(0.0));
        let verdict = judge(&log_ratio, margin, noise);
        let values = |side: &HashMap<usize, f64>| pairs.iter().map(|pair| side[pair]).collect::<Vec<f64>>();
        let (before, after) = (values(&before), values(&after));
        let (a, b) = (stats::outliers(&before), stats::outliers(&after));
        // Each side's logarithms about their own mean, in the order in which they ran.
        let drift = stats::drift(&centred(&runs, metric));
        Some(Comparison {
            workload: workload.id.clone(),
            variant: arm.after.id.clone(),
            reference: arm.before.id.clone(),
            metric,
            pairs: pairs.len(),
            noise,
            margin,
            verdict,
            pairs_needed: (verdict == Verdict::Inconclusive)
                .then(|| pairs_needed(pairs.len(), &log_ratio, margin, noise))
                .flatten(),
            log_ratio,
            value: stats::median(&after),
            reference_value: stats::median(&before),
            outliers: (a.0 + b.0, a.1 + b.1),
            drift,
        })
    }

    fn finish(mut self, seconds: f64, ended_early: String) -> SessionResult {
        self.check_all();
        let suite = self.suite;
        let mut comparisons = Vec::new();
        for workload in &suite.workloads {
            for &metric in &workload.metrics {
                let arm = |(before, after)| Arm { workload, before, after, before_first: true };
                let mut arms = suite.arms(workload).into_iter().map(arm);
                let itself = arms.next().and_then(|arm| self.comparison(&arm, metric, None));
                // The noise of a workload is how far the reference seems to be from itself.
                let noise = itself.as_ref().map_or(0.0, |c| c.log_ratio.half_width());
                let noise = if noise.is_finite() { noise } else { 0.0 };
                let margin = (1.0 + suite.margin(workload)).ln();
                let broken =
                    itself.as_ref().is_some_and(|c| c.log_ratio.is_significant() && c.log_ratio.mean.abs() > margin);
                let found: Vec<Comparison> =
                    arms.filter_map(|arm| self.comparison(&arm, metric, Some(noise))).collect();
                comparisons.extend(itself.into_iter().chain(found).map(|comparison| Comparison {
                    verdict: if broken { Verdict::Invalid } else { comparison.verdict },
                    ..comparison
                }));
            }
        }
        let cells = self.cells();
        let models = self.cost_models();
        let broken_limits = broken_limits(suite, &comparisons);
        SessionResult {
            schema: SCHEMA.into(),
            suite: suite.clone(),
            session: Session {
                began: std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0, |now| now.as_secs().saturating_sub(seconds as u64)),
                seed: self.setting.seed,
                seconds,
                command: self.setting.command.clone(),
                model: self.setting.model.display().to_string(),
                ended_early,
            },
            environment: self.setting.environment.clone(),
            runs: self.runs,
            comparisons,
            cells,
            models,
            broken_limits,
            allocations: Vec::new(),
        }
    }

    /// Judges every run's numbers; done at the end, since the oracle may have run after others.
    fn check_all(&mut self) {
        for run in &mut self.runs {
            let Some(answer) = &run.answer else { continue };
            let suite = self.suite;
            let workload = suite.workloads.iter().find(|w| w.id == run.workload);
            let (Some(workload), Some(variant), Some(oracle)) =
                (workload, suite.variant(&run.variant), suite.variant(suite.oracle()))
            else {
                continue;
            };
            let (job, exact) = (suite.job(workload, variant), variant.dtype == oracle.dtype);
            // Another job makes other numbers; what both know is the model's answer to the prompt.
            let truth = self.truths.get(&run.workload).map(|truth| match job == suite.job(workload, oracle) {
                true => truth.clone(),
                false => Answer { values: answer.values.clone(), decoded: Vec::new(), ..truth.clone() },
            });
            run.check = Some(check::check(job, answer, truth.as_ref(), exact));
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for workload in &self.suite.workloads {
            for variant in self.suite.participants(workload) {
                let runs: Vec<&Run> =
                    self.runs.iter().filter(|r| r.workload == workload.id && r.variant == variant.id).collect();
                let judged = |run: &&Run| match (&run.check, &run.failed) {
                    (Some(check), _) => (check.state, check.max_abs, check.difference.clone()),
                    (None, Some((how, said))) => (State::Error, 0.0, format!("{}: {said}", how.name())),
                    (None, None) => (State::Error, 0.0, String::new()),
                };
                let worst = runs.iter().map(judged).max_by_key(|(state, ..)| *state);
                if let Some((state, max_abs, why)) = worst {
                    cells.push(Cell {
                        workload: workload.id.clone(),
                        variant: variant.id.clone(),
                        state,
                        max_abs,
                        why,
                    });
                }
            }
        }
        cells
    }

    /// Time against captured layers, for each workload that variants ran with several numbers of them.
    fn cost_models(&self) -> Vec<CostModel> {
        let layers = |workload: &Workload, variant: &str| match self.suite.job(workload, self.suite.variant(variant)?) {
            Job::Prefill => Some(0.0),
            Job::CaptureLayers { layers } => Some(layers as f64),
            _ => None,
        };
        let fit = |workload: &Workload| {
            let runs = self.runs.iter().filter(|run| run.workload == workload.id);
            let points: Vec<(f64, f64)> =
                runs.filter_map(|run| Some((layers(workload, &run.variant)?, run.value(Metric::Time)?))).collect();
            let rows: Vec<Vec<f64>> = points.iter().map(|(layers, _)| vec![1.0, *layers]).collect();
            let values: Vec<f64> = points.iter().map(|(_, seconds)| *seconds).collect();
            let (fit, estimates) = stats::fit_with_intervals(&rows, &values, self.setting.seed)?;
            let [base, per_layer] = estimates[..] else { return None };
            Some(CostModel { workload: workload.id.clone(), base, per_layer, r2: fit.r2, points })
        };
        self.suite.workloads.iter().filter_map(fit).collect()
    }
}

/// The logarithms of a metric in the order of running, each about the mean of its own variant.
fn centred(runs: &[&Run], metric: Metric) -> Vec<f64> {
    let logs: Vec<(bool, f64)> =
        runs.iter().filter_map(|run| Some((run.is_reference, run.value(metric)?.ln()))).collect();
    let of = |side: bool| logs.iter().filter(move |(s, _)| *s == side).map(|(_, x)| *x).collect::<Vec<f64>>();
    let means = [stats::mean(&of(false)), stats::mean(&of(true))];
    logs.iter().map(|(side, x)| x - means[usize::from(*side)]).collect()
}

fn broken_limits(suite: &Suite, comparisons: &[Comparison]) -> Vec<String> {
    let mut broken = Vec::new();
    for limit in &suite.limits {
        let found = comparisons
            .iter()
            .find(|c| c.workload == limit.workload && c.variant == limit.variant && c.metric == limit.metric);
        let Some(found) = found else { continue };
        let what = format!("{} of {} on {}", limit.metric.name(), limit.variant, limit.workload);
        // A ratio is broken when its whole interval is; an absolute value when its median is.
        if let Some(most) = limit.ratio.filter(|most| found.log_ratio.low.exp() > *most) {
            broken.push(format!(
                "{what}: {:.3} times the reference's, at most {most} is allowed",
                found.log_ratio.mean.exp()
            ));
        }
        if let Some(most) = limit.absolute.filter(|most| found.value > *most) {
            broken.push(format!("{what}: {:.6}, at most {most} is allowed", found.value));
        }
    }
    broken
}
