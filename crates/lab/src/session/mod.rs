//! A session: pairs of fresh processes in random ABBA order, until every comparison is precise
//! enough or the time budget is spent (a paired design).
//!
//! Every workload has a `Pairing` of each variant with the reference, and an A/A control that
//! pairs the reference with itself and measures the machine's noise floor. The pairings take turns,
//! so that slow drift of the machine affects all of them alike.

mod findings;

use crate::environment::Environment;
use crate::executor::{Executor, FailureKind, WorkerOutcome};
use crate::protocol::{Answer, Job, Request, prompt};
use crate::result::{AllocationCounts, Comparison, Run, SessionResult};
use crate::roofline::{self, Roofline};
use crate::stats::Rng;
use crate::suite::{Metric, Suite, Variant, WorkerKind, Workload};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Inputs of a session besides its suite.
pub struct SessionContext {
    /// The model's directory or file.
    pub model: PathBuf,
    /// Family to assume for a model of an unknown type.
    pub assume: Option<String>,
    /// Seed of the random order.
    pub seed: u64,
    /// Fingerprint of the machine, the build and the model.
    pub environment: Environment,
    /// The command line, for the result file.
    pub command: Vec<String>,
    /// Runs of an interrupted session of the same suite and seed. They are reused instead of
    /// repeated.
    pub earlier: Vec<Run>,
}

/// Progress report, sent after every run.
pub struct Progress<'a> {
    /// The run that has just ended.
    pub run: &'a Run,
    /// Its comparison so far.
    pub so_far: Option<Comparison>,
    /// Completed fraction of the session, by time or by pairs.
    pub done: f64,
}

/// A workload and the two variants that are compared on it. The A/A control has the reference on
/// both sides.
struct Pairing<'s> {
    workload: &'s Workload,
    before: &'s Variant,
    after: &'s Variant,
    /// Whether `before` runs first in even pairs; it runs second in odd ones.
    before_first: bool,
}

/// Returns the name of a pairing, as it is stored in result files.
fn pairing_name(before: &Variant, after: &Variant) -> String {
    format!("{} → {}", before.id, after.id)
}

/// Runs a suite. `on_progress` receives every raw result as it arrives, so that an interrupted
/// session loses nothing.
pub fn run(
    suite: &Suite,
    context: SessionContext,
    executor: &mut dyn Executor,
    on_progress: &mut dyn FnMut(&Progress),
) -> crate::Result<SessionResult> {
    suite.check()?;
    let mut random = Rng::new(context.seed);
    let mut pairings = Vec::new();
    for workload in &suite.workloads {
        for (before, after) in suite.pairings(workload) {
            pairings.push(Pairing { workload, before, after, before_first: random.next_u64() & 1 == 0 });
        }
    }
    let mut state = SessionState {
        suite,
        context: &context,
        runs: Vec::new(),
        oracle_answers: Vec::new(),
        pending_answer: None,
        longest_s: HashMap::new(),
    };
    let mut earlier: HashMap<(String, String, usize, bool), Run> = context
        .earlier
        .iter()
        .map(|run| ((run.workload.clone(), run.pairing.clone(), run.pair, run.is_reference), run.clone()))
        .collect();
    let mut ended_early = String::new();
    let spent = format!("the budget of {} s is spent", (suite.precision.budget_s * 10.0).round() / 10.0);
    'rounds: for pair in 0..suite.precision.pairs {
        let mut order: Vec<usize> =
            (0..pairings.len()).filter(|&pairing| state.needs_more(&pairings[pairing], pair)).collect();
        if order.is_empty() {
            break;
        }
        random.shuffle(&mut order);
        for pairing in order {
            let pairing = &pairings[pairing];
            // The order alternates within a pairing: A B, B A, A B, …
            let first = pairing.before_first == pair.is_multiple_of(2);
            if state.expected_seconds(pairing) > suite.precision.budget_s - executor.elapsed() {
                ended_early = spent.clone();
                continue;
            }
            state.pending_answer = None;
            for is_reference in [first, !first] {
                let key =
                    (pairing.workload.id.clone(), pairing_name(pairing.before, pairing.after), pair, is_reference);
                let run = match earlier.remove(&key) {
                    Some(run) => state.record(run),
                    None => match state.run_one(pairing, pair, is_reference, executor) {
                        Some(run) => run,
                        None => {
                            ended_early = spent;
                            break 'rounds;
                        }
                    },
                };
                let so_far = state.comparison(pairing, Metric::Time, None);
                let done = (executor.elapsed() / suite.precision.budget_s)
                    .max((pair as f64 + 0.5) / suite.precision.pairs as f64)
                    .min(1.0);
                on_progress(&Progress { run: &run, so_far, done });
                state.runs.push(run);
            }
        }
    }
    let seconds = executor.elapsed();
    Ok(state.finish(seconds, ended_early))
}

/// Counts the heap allocations of one run of every Pellucid variant on every workload, in separate
/// untimed processes. A variant whose worker fails is left out; `on_failure` receives the reason.
pub fn count_allocations(
    suite: &Suite,
    context: &SessionContext,
    executor: &mut dyn Executor,
    on_failure: &mut dyn FnMut(&str),
) -> Vec<AllocationCounts> {
    let mut counts = Vec::new();
    for workload in &suite.workloads {
        for variant in suite.participants(workload).into_iter().filter(|v| v.worker == WorkerKind::Pellucid) {
            let request = Request { repeats: 1, ..request(suite, context, workload, variant) };
            let limit = Duration::from_secs_f64(suite.precision.timeout_s);
            let found = match executor.count_allocations(variant, &request, limit) {
                WorkerOutcome::Answered(answer) => answer.allocations.ok_or_else(|| "its worker did not count".into()),
                WorkerOutcome::Failed { kind, message } => Err(format!("its worker {}: {message}", kind.name())),
            };
            match found {
                Ok(allocations) => {
                    counts.push(AllocationCounts {
                        workload: workload.id.clone(),
                        variant: variant.id.clone(),
                        allocations,
                    });
                }
                Err(why) => on_failure(&format!("no allocations of {} on {}: {why}", variant.id, workload.id)),
            }
        }
    }
    counts
}

/// Measures the roofline of the suite's first Pellucid variant on its first workload, in a fresh
/// process. `None` if the suite has no such variant.
pub fn roofline(suite: &Suite, context: &SessionContext, pellucid: &Path) -> Option<Result<Roofline, String>> {
    let variant = suite.variants.iter().find(|variant| variant.worker == WorkerKind::Pellucid)?;
    let request = request(suite, context, suite.workloads.first()?, variant);
    Some(roofline::measure_in_process(variant, request, pellucid))
}

/// Builds the request for a variant's worker on a workload.
pub(crate) fn request(suite: &Suite, context: &SessionContext, workload: &Workload, variant: &Variant) -> Request {
    Request {
        model: workload.model.as_ref().map_or_else(|| context.model.clone(), PathBuf::from),
        dtype: variant.dtype.clone(),
        threads: variant.threads,
        assume: context.assume.clone(),
        job: suite.job(workload, variant),
        paired_job: None,
        tokens: prompt(workload.tokens),
        warmups: workload.warmups,
        repeats: workload.repeats,
    }
}

/// Upper bound of the environment padding: one memory page. Beyond it the stack's alignment
/// repeats.
const MAX_PADDING: usize = 4096;

/// Returns the padding of a process from the session's seed and the process's index.
fn padding(seed: u64, order: usize) -> usize {
    Rng::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(order as u64)).below(MAX_PADDING)
}

/// Returns the variant with a padded environment, which shifts the process's stack.
fn with_padding(variant: &Variant, padding: usize) -> Variant {
    let mut padded = variant.clone();
    padded.env.insert("PELLUCID_LAB_PADDING".into(), "x".repeat(padding));
    padded
}

/// Identifies a correct output: model, prompt length and job. All runs with the same key must have
/// the same output, whatever their workload.
#[derive(Clone, Debug, PartialEq)]
struct OracleKey {
    model: Option<String>,
    tokens: usize,
    job: Job,
}

struct SessionState<'s> {
    suite: &'s Suite,
    context: &'s SessionContext,
    runs: Vec<Run>,
    /// The oracle's first answer for each key.
    oracle_answers: Vec<(OracleKey, Answer)>,
    /// The answer for a pair's second side, if the process of the first side measured both.
    pending_answer: Option<Answer>,
    /// Longest duration per (workload, variant), in seconds.
    longest_s: HashMap<(String, String), f64>,
}

impl SessionState<'_> {
    /// Whether a pairing needs another pair: its confidence interval is still too wide.
    fn needs_more(&self, pairing: &Pairing, pairs: usize) -> bool {
        if pairs < self.suite.precision.least_pairs {
            return true;
        }
        let target = self.suite.precision.half_width;
        pairing.workload.metrics.iter().any(|&metric| {
            let comparison = self.comparison(pairing, metric, None);
            // A pairing without any complete pair failed; it is not repeated.
            comparison.is_some_and(|comparison| comparison.log_ratio.half_width() > target)
        })
    }

    /// Returns the expected seconds of a pair, from earlier ones; 0 before the first.
    fn expected_seconds(&self, pairing: &Pairing) -> f64 {
        let of = |variant: &Variant| {
            self.longest_s.get(&(pairing.workload.id.clone(), variant.id.clone())).copied().unwrap_or_default()
        };
        of(pairing.before) + of(pairing.after)
    }

    /// Runs one side of a pair. `None` if the budget ends first, which does not count as a failure
    /// of the variant.
    fn run_one(
        &mut self,
        pairing: &Pairing,
        pair: usize,
        is_reference: bool,
        executor: &mut dyn Executor,
    ) -> Option<Run> {
        let precision = &self.suite.precision;
        let variant = if is_reference { pairing.before } else { pairing.after };
        let at_s = executor.elapsed();
        let left = precision.budget_s - at_s;
        if left <= 0.0 {
            return None;
        }
        let padding = padding(self.context.seed, self.runs.len());
        let (answer, failed) = match self.pending_answer.take() {
            Some(answer) => (Some(answer), None),
            None => {
                let other = if is_reference { pairing.after } else { pairing.before };
                let paired_job = pairing.workload.same_process.then(|| self.suite.job(pairing.workload, other));
                let request = Request { paired_job, ..request(self.suite, self.context, pairing.workload, variant) };
                let limit = Duration::from_secs_f64(precision.timeout_s.min(left));
                match executor.run(&with_padding(variant, padding), &request, limit) {
                    WorkerOutcome::Answered(mut answer) => {
                        self.pending_answer = answer.paired_answer.take().map(|paired| *paired);
                        (Some(*answer), None)
                    }
                    WorkerOutcome::Failed { kind: FailureKind::Timeout, .. } if left < precision.timeout_s => {
                        return None;
                    }
                    WorkerOutcome::Failed { kind, message } => (None, Some((kind, message))),
                }
            }
        };
        let longest = self.longest_s.entry((pairing.workload.id.clone(), variant.id.clone())).or_default();
        *longest = longest.max(executor.elapsed() - at_s);
        Some(self.record(Run {
            workload: pairing.workload.id.clone(),
            pairing: pairing_name(pairing.before, pairing.after),
            pair,
            is_reference,
            order: self.runs.len(),
            variant: variant.id.clone(),
            at_s,
            padding,
            answer,
            failed,
            check: None,
        }))
    }

    /// Sets the run's index and stores the oracle's first answer for each key. Later answers are
    /// checked against it.
    fn record(&mut self, mut run: Run) -> Run {
        run.order = self.runs.len();
        if let Some(answer) = &run.answer
            && run.variant == self.suite.oracle()
            && let Some(oracle_key) = self.oracle_key(&run)
            && !self.oracle_answers.iter().any(|(known, _)| *known == oracle_key)
        {
            self.oracle_answers.push((oracle_key, answer.clone()));
        }
        run
    }

    /// Returns the key of a run's correct output.
    fn oracle_key(&self, run: &Run) -> Option<OracleKey> {
        let workload = self.suite.workloads.iter().find(|workload| workload.id == run.workload)?;
        let job = self.suite.job(workload, self.suite.variant(&run.variant)?);
        Some(OracleKey { model: workload.model.clone(), tokens: workload.tokens, job })
    }
}
