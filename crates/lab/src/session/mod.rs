//! A session: pairs of fresh processes in random ABBA order, until every comparison is precise enough or the budget is spent.
//!
//! Every workload has an arm for each variant, which is compared with the reference pair by pair, and one arm of the reference against
//! itself, which tells what this machine does by itself. The arms take turns, so drift falls on all of them.

mod findings;

use crate::environment::Environment;
use crate::executor::{Executor, Failing, Outcome};
use crate::protocol::{Answer, Job, Request, prompt};
use crate::result::{Comparison, Counted, Run, SessionResult};
use crate::roofline::{self, Roofline};
use crate::stats::Random;
use crate::suite::{Metric, Suite, Variant, WorkerKind, Workload};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
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
    let mut state = Running {
        suite,
        setting: &setting,
        runs: Vec::new(),
        truths: Vec::new(),
        waiting: None,
        longest: HashMap::new(),
    };
    let mut earlier: HashMap<(String, String, usize, bool), Run> = setting
        .earlier
        .iter()
        .map(|run| ((run.workload.clone(), run.arm.clone(), run.pair, run.is_reference), run.clone()))
        .collect();
    let mut ended_early = String::new();
    let spent = format!("the budget of {} s is spent", (suite.precision.budget_s * 10.0).round() / 10.0);
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
            if state.expected(arm) > suite.precision.budget_s - executor.elapsed() {
                ended_early = spent.clone();
                continue;
            }
            state.waiting = None;
            for is_reference in [first, !first] {
                let key = (arm.workload.id.clone(), arm_name(arm.before, arm.after), pair, is_reference);
                let run = match earlier.remove(&key) {
                    Some(run) => state.keep(run),
                    None => match state.one(arm, pair, is_reference, executor) {
                        Some(run) => run,
                        None => {
                            ended_early = spent;
                            break 'rounds;
                        }
                    },
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
/// A variant whose worker fails is left out; `on_failure` receives the reason.
pub fn count_allocations(
    suite: &Suite,
    setting: &Setting,
    executor: &mut dyn Executor,
    on_failure: &mut dyn FnMut(&str),
) -> Vec<Counted> {
    let mut counted = Vec::new();
    for workload in &suite.workloads {
        for variant in suite.participants(workload).into_iter().filter(|v| v.worker == WorkerKind::Pellucid) {
            let request = Request { repeats: 1, ..request(suite, setting, workload, variant) };
            let limit = Duration::from_secs_f64(suite.precision.timeout_s);
            let found = match executor.count_allocations(variant, &request, limit) {
                Outcome::Answered(answer) => answer.allocations.ok_or_else(|| "its worker did not count".into()),
                Outcome::Failed { how, said } => Err(format!("its worker {}: {said}", how.name())),
            };
            match found {
                Ok(allocations) => {
                    counted.push(Counted { workload: workload.id.clone(), variant: variant.id.clone(), allocations });
                }
                Err(why) => on_failure(&format!("no allocations of {} on {}: {why}", variant.id, workload.id)),
            }
        }
    }
    counted
}

/// Measures the roofline of the suite's first variant of ours on its first workload, in a fresh process of an executable of ours; none where
/// the suite has no such variant.
pub fn roofline(suite: &Suite, setting: &Setting, pellucid: &Path) -> Option<Result<Roofline, String>> {
    let variant = suite.variants.iter().find(|variant| variant.worker == WorkerKind::Pellucid)?;
    let request = request(suite, setting, suite.workloads.first()?, variant);
    Some(roofline::in_process(variant, request, pellucid))
}

/// What a variant's worker is asked on a workload.
pub(crate) fn request(suite: &Suite, setting: &Setting, workload: &Workload, variant: &Variant) -> Request {
    Request {
        model: workload.model.as_ref().map_or_else(|| setting.model.clone(), PathBuf::from),
        dtype: variant.dtype.clone(),
        threads: variant.threads,
        assume: setting.assume.clone(),
        job: suite.job(workload, variant),
        beside: None,
        tokens: prompt(workload.tokens),
        warmups: workload.warmups,
        repeats: workload.repeats,
    }
}

/// Characters at most that a worker's environment is padded with: the size of a page, within which the place of a stack matters.
const PADDING: usize = 4096;

/// The padding of a process, from the seed of its session and its place in it.
fn padding(seed: u64, place: usize) -> usize {
    Random::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(place as u64)).below(PADDING)
}

/// A variant whose process has a longer environment, and so another layout of its stack.
fn padded(variant: &Variant, padding: usize) -> Variant {
    let mut padded = variant.clone();
    padded.env.insert("PELLUCID_LAB_PADDING".into(), "x".repeat(padding));
    padded
}

/// What is asked of a model: whoever answers the same question must say the same, on whichever workload it was asked.
#[derive(Clone, Debug, PartialEq)]
struct Question {
    model: Option<String>,
    tokens: usize,
    job: Job,
}

struct Running<'s> {
    suite: &'s Suite,
    setting: &'s Setting,
    runs: Vec<Run>,
    /// The oracle's first answer to each question.
    truths: Vec<(Question, Answer)>,
    /// What the process of a pair's first side has said of its second, where one does both.
    waiting: Option<Answer>,
    /// Seconds of each variant's longest process on each workload.
    longest: HashMap<(String, String), f64>,
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

    /// The seconds that a pair of an arm will take, from those before it; 0 where nobody knows.
    fn expected(&self, arm: &Arm) -> f64 {
        let of = |variant: &Variant| {
            self.longest.get(&(arm.workload.id.clone(), variant.id.clone())).copied().unwrap_or_default()
        };
        of(arm.before) + of(arm.after)
    }

    /// One process; none where the budget ended before it did, which is no fault of its own.
    fn one(&mut self, arm: &Arm, pair: usize, is_reference: bool, executor: &mut dyn Executor) -> Option<Run> {
        let precision = &self.suite.precision;
        let variant = if is_reference { arm.before } else { arm.after };
        let at_s = executor.elapsed();
        let left = precision.budget_s - at_s;
        if left <= 0.0 {
            return None;
        }
        let padding = padding(self.setting.seed, self.runs.len());
        let (answer, failed) = match self.waiting.take() {
            Some(answer) => (Some(answer), None),
            None => {
                let other = if is_reference { arm.after } else { arm.before };
                let beside = arm.workload.together.then(|| self.suite.job(arm.workload, other));
                let request = Request { beside, ..request(self.suite, self.setting, arm.workload, variant) };
                let limit = Duration::from_secs_f64(precision.timeout_s.min(left));
                match executor.run(&padded(variant, padding), &request, limit) {
                    Outcome::Answered(mut answer) => {
                        self.waiting = answer.beside.take().map(|beside| *beside);
                        (Some(*answer), None)
                    }
                    Outcome::Failed { how: Failing::Timeout, .. } if left < precision.timeout_s => return None,
                    Outcome::Failed { how, said } => (None, Some((how, said))),
                }
            }
        };
        let took = self.longest.entry((arm.workload.id.clone(), variant.id.clone())).or_default();
        *took = took.max(executor.elapsed() - at_s);
        Some(self.keep(Run {
            workload: arm.workload.id.clone(),
            arm: arm_name(arm.before, arm.after),
            pair,
            is_reference,
            place: self.runs.len(),
            variant: variant.id.clone(),
            at_s,
            padding,
            answer,
            failed,
            check: None,
        }))
    }

    /// Takes a run in: the oracle's first answer becomes the truth that later ones are checked against.
    fn keep(&mut self, mut run: Run) -> Run {
        run.place = self.runs.len();
        if let Some(answer) = &run.answer
            && run.variant == self.suite.oracle()
            && let Some(question) = self.question(&run)
            && !self.truths.iter().any(|(known, _)| *known == question)
        {
            self.truths.push((question, answer.clone()));
        }
        run
    }

    /// What a run was asked.
    fn question(&self, run: &Run) -> Option<Question> {
        let workload = self.suite.workloads.iter().find(|workload| workload.id == run.workload)?;
        let job = self.suite.job(workload, self.suite.variant(&run.variant)?);
        Some(Question { model: workload.model.clone(), tokens: workload.tokens, job })
    }
}
