//! Conclusions of simulated sessions: verdicts, budgets and the self-test.

use pellucid_lab::budget::{self, TimeBudget};
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, FailureKind, WorkerOutcome};
use pellucid_lab::protocol::{Answer, Job, Request};
use pellucid_lab::result::SessionResult;
use pellucid_lab::selftest::{self, SelftestOptions};
use pellucid_lab::session::{self, SessionContext};
use pellucid_lab::stats::Rng;
use pellucid_lab::suite::{Suite, Variant, WorkerKind};
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{builtin_suites, worker};
use std::path::Path;
use std::time::Duration;

/// A simulated machine with different durations for Pellucid's and peers' processes, and support
/// for the injected slowdown.
struct Machine {
    random: Rng,
    noise: f64,
    /// Seconds of a Pellucid process and of a peer's.
    takes: (f64, f64),
    fails: bool,
    clock: f64,
}

impl Machine {
    fn new(seed: u64, noise: f64) -> Machine {
        Machine { random: Rng::new(seed), noise, takes: (1.0, 1.0), fails: false, clock: 0.0 }
    }
}

impl Executor for Machine {
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
        let takes = if variant.worker == WorkerKind::Pellucid { self.takes.0 } else { self.takes.1 };
        // A process that would exceed the limit is killed there.
        self.clock += takes.min(limit.as_secs_f64());
        if takes > limit.as_secs_f64() {
            return WorkerOutcome::Failed { kind: FailureKind::Timeout, message: String::new() };
        }
        if self.fails {
            return WorkerOutcome::Failed { kind: FailureKind::Error, message: "no".into() };
        }
        let slow: f64 = variant.env.get(worker::SLOWDOWN_VARIABLE).map_or(0.0, |share| share.parse().expect("a share"));
        let seconds = 0.1 * (1.0 + slow) * (self.noise * self.random.normal()).exp();
        // A capture costs 1 %; the noise of a process affects all of its jobs alike.
        let takes = |job: Job| seconds * if job == Job::Capture { 1.01 } else { 1.0 };
        let answer = |job: Job, paired_answer: Option<Box<Answer>>| Answer {
            engine: "simulated".into(),
            load_to_first_token_s: 1.0,
            samples_s: vec![takes(job)],
            peak_bytes: 1000,
            weight_bytes: 1000,
            top: vec![(3, 1.0)],
            values: vec![1.0],
            paired_answer,
            ..Answer::default()
        };
        let paired_answer = request.paired_job.map(|job| Box::new(answer(job, None)));
        WorkerOutcome::Answered(Box::new(answer(request.job, paired_answer)))
    }

    fn elapsed(&self) -> f64 {
        self.clock
    }
}

fn setting(seed: u64) -> SessionContext {
    let environment = Environment::default();
    SessionContext { model: "none".into(), assume: None, seed, environment, command: vec![], earlier: vec![] }
}

fn run(suite: &Suite, mut machine: Machine) -> SessionResult {
    session::run(suite, setting(1), &mut machine, &mut |_| {}).expect("a session")
}

/// A suite of these variants, each `id` or `id job`.
fn suite(variants: &[&str], more: &str) -> Suite {
    let mut text = format!("name = \"s\"\nreference = \"a\"\n{more}\n[precision]\nbudget_s = 1e6\n");
    for variant in variants {
        let (id, job) = variant.split_once(' ').unwrap_or((variant, ""));
        text += &format!("[[variant]]\nid = \"{id}\"\n");
        text += &if job.is_empty() { String::new() } else { format!("{job}\n") };
    }
    text += "[[workload]]\nid = \"w\"\njob = \"prefill\"\ntokens = 4\n";
    Suite::parse(&text, "s").expect("a suite")
}

/// Two pairs on a noisy machine decide nothing; `equivalent` would be wrong.
#[test]
fn a_session_of_undecided_rows_is_inconclusive() {
    let mut two = suite(&["a", "b"], "");
    (two.precision.pairs, two.precision.least_pairs) = (2, 2);
    let result = run(&two, Machine::new(1, 0.1));
    let conclusion = result.conclusion();
    assert_eq!((conclusion.verdict, conclusion.exit_code()), (Some(Verdict::Inconclusive), 4), "{conclusion:?}");
    assert!(conclusion.why.contains("1 of 1 gating rows"), "{conclusion:?}");
    assert_eq!(run(&suite(&["a", "b"], ""), Machine::new(1, 1e-4)).conclusion().verdict, Some(Verdict::Equivalent));
}

/// Processes vary by 10 % and a capture costs 1 %: only pairs within one process resolve it.
#[test]
fn jobs_of_one_process_are_compared_without_the_noise_between_processes() {
    let mut suite = suite(&["a", "more job = \"capture\""], "");
    let apart = run(&suite, Machine::new(1, 0.1));
    suite.workloads[0].same_process = true;
    let same_process = run(&suite, Machine::new(1, 0.1));
    let interval = |result: &SessionResult| result.comparisons[1].log_ratio;
    assert!(interval(&apart).half_width() > 0.02, "{:?}", interval(&apart));
    let found = interval(&same_process);
    assert!((found.mean - 1.01f64.ln()).abs() < 1e-9 && found.half_width() < 1e-9, "{found:?}");
    // Two sides of a pair, one process.
    assert_eq!(
        (same_process.session.seconds, same_process.processes()),
        (same_process.runs.len() as f64 / 2.0, same_process.runs.len() / 2)
    );
}

#[test]
fn rows_of_other_jobs_and_libraries_are_informational() {
    let informing = suite(&["a", "more job = \"capture\"", "peer worker = \"nnsight\""], "");
    let conclusion = run(&informing, Machine::new(1, 0.1)).conclusion();
    assert_eq!((conclusion.verdict, conclusion.exit_code()), (None, 0), "{conclusion:?}");
    assert_eq!(conclusion.name(), "information only");
    assert!(conclusion.why.contains("2 rows are informational"), "{conclusion:?}");
    // A single gating row decides.
    let mixed = suite(&["a", "b", "more job = \"capture\""], "");
    let conclusion = run(&mixed, Machine::new(1, 1e-4)).conclusion();
    assert_eq!(conclusion.verdict, Some(Verdict::Equivalent), "{conclusion:?}");
    assert!(conclusion.why.contains("1 row is informational"), "{conclusion:?}");
}

#[test]
fn an_undecided_limit_is_inconclusive() {
    let limited = |ratio: f64| {
        let mut suite = suite(&["a", "more job = \"capture\""], "");
        let text = format!("limit = [{{ workload = \"w\", variant = \"more\", ratio = {ratio} }}]");
        suite.limits = toml::from_str::<toml::Table>(&text).expect("TOML")["limit"].clone().try_into().expect("limits");
        suite
    };
    let verdict = |ratio: f64, noise: f64| run(&limited(ratio), Machine::new(1, noise)).conclusion().verdict;
    assert_eq!(verdict(1.5, 0.01), Some(Verdict::Equivalent));
    assert_eq!(verdict(0.5, 0.01), Some(Verdict::Regressed));
    // A limit in the middle of the interval.
    let found = run(&limited(1.5), Machine::new(1, 0.05));
    let middle = found.comparisons.iter().find(|c| c.variant == "more").expect("compared").log_ratio.mean.exp();
    assert_eq!(verdict(middle, 0.05), Some(Verdict::Inconclusive));
    let conclusion = run(&limited(middle), Machine::new(1, 0.05)).conclusion();
    assert!(conclusion.why.contains("it is undecided whether"), "{conclusion:?}");
}

#[test]
fn a_session_without_any_comparison_is_invalid_with_a_reason() {
    let result = run(&suite(&["a", "b"], ""), Machine { fails: true, ..Machine::new(1, 0.01) });
    let conclusion = result.conclusion();
    assert_eq!((conclusion.verdict, result.exit_code()), (Some(Verdict::Invalid), 5));
    assert!(conclusion.why.contains("nothing was compared"), "{conclusion:?}");
    // A budget that ends before the first pair.
    let mut short = suite(&["a", "b"], "");
    short.precision.budget_s = 0.5;
    let conclusion = run(&short, Machine::new(1, 0.01)).conclusion();
    assert_eq!(conclusion.verdict, Some(Verdict::Invalid));
    assert!(conclusion.why.contains("the budget of 0.5 s is spent"), "{conclusion:?}");
    // A suite with one variant compares nothing, which is valid.
    assert_eq!(run(&suite(&["a"], ""), Machine::new(1, 0.01)).conclusion().verdict, None);
}

/// All built-in suites share one time budget, on machines of all speeds.
#[test]
fn all_suites_together_stay_within_their_budget() {
    const TOTAL: f64 = 540.0;
    for takes in [(0.05, 0.5), (2.0, 9.0), (6.0, 40.0), (50.0, 400.0)] {
        let all: Vec<Suite> =
            builtin_suites::names().map(|name| builtin_suites::named(name).expect("there").expect("a suite")).collect();
        let mut total = TimeBudget::new(TOTAL, all.iter().map(budget::round_cost));
        let (mut spent, mut compared) = (0.0, 0);
        for mut suite in all {
            let cost = budget::round_cost(&suite);
            suite.precision.budget_s = total.share(cost);
            (suite.precision.pairs, suite.precision.least_pairs) = (2, 2);
            let mut machine = Machine { takes, ..Machine::new(1, 0.01) };
            let result = session::run(&suite, setting(1), &mut machine, &mut |_| {}).expect("a session");
            assert!(machine.clock <= suite.precision.budget_s + 1e-9, "{}: {}", suite.name, machine.clock);
            // A process cut short by the budget does not count as failed.
            assert!(result.runs.iter().all(|run| run.failed.is_none()), "{}", suite.name);
            spent += machine.clock;
            compared += usize::from(result.conclusion().verdict != Some(Verdict::Invalid));
            total.spend(cost, machine.clock);
        }
        assert!(spent <= TOTAL + 1e-6, "{spent} s with processes of {takes:?} s");
        let suites = builtin_suites::names().count();
        assert!(
            takes.0 > 5.0 || compared == suites,
            "{compared} of {suites} suites are valid, processes of {takes:?} s"
        );
    }
}

/// `pellucid lab selftest` on a simulated machine.
#[test]
fn identical_builds_do_not_differ_and_a_slowed_one_is_detected_or_inconclusive() {
    let options = SelftestOptions { sessions: 20, pairs: 12, slow: 0.03 };
    let suite = selftest::suite([Path::new("one"), Path::new("two")], &options);
    suite.check().expect("a suite");
    let selftest = |noise: f64| {
        let begin = |seed: u64| (setting(seed), Machine::new(seed, noise));
        selftest::run(&suite, &options, begin, |_, _| {}).expect("selftest")
    };
    let quiet = selftest(0.003);
    assert!(quiet.false_verdicts <= 2 && quiet.found >= 18 && quiet.missed == 0 && quiet.holds(), "{quiet:?}");
    let noisy = selftest(0.03);
    assert!(noisy.false_verdicts <= 2 && noisy.missed <= 2 && noisy.holds(), "{noisy:?}");
    assert!(noisy.open >= 10 && noisy.pairs_needed.is_some_and(|pairs| pairs > 12), "{noisy:?}");
    assert!(noisy.text().contains("pairs needed"), "{}", noisy.text());
    assert!(quiet.text().contains("verdicts on this machine are reliable"), "{}", quiet.text());
}
