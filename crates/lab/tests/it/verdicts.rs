//! What whole sessions say: verdicts, budgets and the test of the lab on itself, with a machine that takes simulated time.

use pellucid_lab::budget::{self, Purse};
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, Failing, Outcome};
use pellucid_lab::protocol::{Answer, Job, Request};
use pellucid_lab::result::SessionResult;
use pellucid_lab::selftest::{self, Trial};
use pellucid_lab::session::{self, Setting};
use pellucid_lab::stats::Random;
use pellucid_lab::suite::{Suite, Variant, WorkerKind};
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{builtin_suites, worker};
use std::path::Path;
use std::time::Duration;

/// A machine on which a process of ours takes a few seconds and one of a peer many, and which slows whoever asks for it.
struct Machine {
    random: Random,
    noise: f64,
    /// Seconds of a process of ours and of a peer.
    takes: (f64, f64),
    fails: bool,
    clock: f64,
}

impl Machine {
    fn new(seed: u64, noise: f64) -> Machine {
        Machine { random: Random::new(seed), noise, takes: (1.0, 1.0), fails: false, clock: 0.0 }
    }
}

impl Executor for Machine {
    fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> Outcome {
        let takes = if variant.worker == WorkerKind::Pellucid { self.takes.0 } else { self.takes.1 };
        // Nobody runs longer than the limit: whoever would is killed then.
        self.clock += takes.min(limit.as_secs_f64());
        if takes > limit.as_secs_f64() {
            return Outcome::Failed { how: Failing::Timeout, said: String::new() };
        }
        if self.fails {
            return Outcome::Failed { how: Failing::Error, said: "no".into() };
        }
        let slow: f64 = variant.env.get(worker::SLOW).map_or(0.0, |share| share.parse().expect("a share"));
        let seconds = 0.1 * (1.0 + slow) * (self.noise * self.random.normal()).exp();
        // A capture costs one in a hundred; what a process does by itself falls on all of its jobs.
        let takes = |job: Job| seconds * if job == Job::Capture { 1.01 } else { 1.0 };
        let answer = |job: Job, beside: Option<Box<Answer>>| Answer {
            engine: "simulated".into(),
            load_to_first_token_s: 1.0,
            samples_s: vec![takes(job)],
            peak_bytes: 1000,
            weight_bytes: 1000,
            top: vec![(3, 1.0)],
            values: vec![1.0],
            beside,
            ..Answer::default()
        };
        let beside = request.beside.map(|job| Box::new(answer(job, None)));
        Outcome::Answered(Box::new(answer(request.job, beside)))
    }

    fn elapsed(&self) -> f64 {
        self.clock
    }
}

fn setting(seed: u64) -> Setting {
    let environment = Environment::default();
    Setting { model: "none".into(), assume: None, seed, environment, command: vec![], earlier: vec![] }
}

fn run(suite: &Suite, mut machine: Machine) -> SessionResult {
    session::run(suite, setting(1), &mut machine, &mut |_| {}).expect("a session")
}

/// A suite of a reference and others, each of them `id` or `id job`.
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

/// Two pairs on a noisy machine decide nothing; saying that all is equivalent was wrong.
#[test]
fn a_session_of_undecided_rows_is_inconclusive() {
    let mut two = suite(&["a", "b"], "");
    (two.precision.pairs, two.precision.least_pairs) = (2, 2);
    let result = run(&two, Machine::new(1, 0.1));
    let conclusion = result.conclusion();
    assert_eq!((conclusion.verdict, conclusion.exit_code()), (Some(Verdict::Inconclusive), 4), "{conclusion:?}");
    assert!(conclusion.why.contains("1 of 1 rows that gate"), "{conclusion:?}");
    assert_eq!(run(&suite(&["a", "b"], ""), Machine::new(1, 1e-4)).conclusion().verdict, Some(Verdict::Equivalent));
}

/// One process differs from the next by a tenth, and a capture from none by a hundredth: only a process that does both can tell.
#[test]
fn jobs_of_one_process_are_compared_without_what_processes_do() {
    let mut suite = suite(&["a", "more job = \"capture\""], "");
    let apart = run(&suite, Machine::new(1, 0.1));
    suite.workloads[0].together = true;
    let together = run(&suite, Machine::new(1, 0.1));
    let interval = |result: &SessionResult| result.comparisons[1].log_ratio;
    assert!(interval(&apart).half_width() > 0.02, "{:?}", interval(&apart));
    let found = interval(&together);
    assert!((found.mean - 1.01f64.ln()).abs() < 1e-9 && found.half_width() < 1e-9, "{found:?}");
    // Two sides of a pair, one process.
    assert_eq!(
        (together.session.seconds, together.processes()),
        (together.runs.len() as f64 / 2.0, together.runs.len() / 2)
    );
}

#[test]
fn rows_of_other_work_and_of_others_inform_and_do_not_count() {
    let informing = suite(&["a", "more job = \"capture\"", "peer worker = \"nnsight\""], "");
    let conclusion = run(&informing, Machine::new(1, 0.1)).conclusion();
    assert_eq!((conclusion.verdict, conclusion.exit_code()), (None, 0), "{conclusion:?}");
    assert_eq!(conclusion.name(), "information only");
    assert!(conclusion.why.contains("2 rows are information and do not count"), "{conclusion:?}");
    // With one row that gates, that row decides.
    let mixed = suite(&["a", "b", "more job = \"capture\""], "");
    let conclusion = run(&mixed, Machine::new(1, 1e-4)).conclusion();
    assert_eq!(conclusion.verdict, Some(Verdict::Equivalent), "{conclusion:?}");
    assert!(conclusion.why.contains("1 row is information"), "{conclusion:?}");
}

#[test]
fn a_limit_that_cannot_be_told_to_hold_is_not_said_to_hold() {
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
    assert!(conclusion.why.contains("may or may not be within its limit"), "{conclusion:?}");
}

#[test]
fn a_session_without_any_comparison_is_invalid_and_says_why() {
    let result = run(&suite(&["a", "b"], ""), Machine { fails: true, ..Machine::new(1, 0.01) });
    let conclusion = result.conclusion();
    assert_eq!((conclusion.verdict, result.exit_code()), (Some(Verdict::Invalid), 5));
    assert!(conclusion.why.contains("nothing was compared"), "{conclusion:?}");
    // A budget that is spent before the first pair ends.
    let mut short = suite(&["a", "b"], "");
    short.precision.budget_s = 0.5;
    let conclusion = run(&short, Machine::new(1, 0.01)).conclusion();
    assert_eq!(conclusion.verdict, Some(Verdict::Invalid));
    assert!(conclusion.why.contains("the budget of 0.5 s is spent"), "{conclusion:?}");
    // A suite that asks for no comparison has nothing to miss.
    assert_eq!(run(&suite(&["a"], ""), Machine::new(1, 0.01)).conclusion().verdict, None);
}

/// Every suite that comes with the lab, one after the other from one purse, on machines of all speeds.
#[test]
fn all_suites_together_stay_within_their_budget() {
    const TOTAL: f64 = 540.0;
    for takes in [(0.05, 0.5), (2.0, 9.0), (6.0, 40.0), (50.0, 400.0)] {
        let all: Vec<Suite> =
            builtin_suites::names().map(|name| builtin_suites::named(name).expect("there").expect("a suite")).collect();
        let mut purse = Purse::new(TOTAL, all.iter().map(budget::weight));
        let (mut spent, mut compared) = (0.0, 0);
        for mut suite in all {
            let weight = budget::weight(&suite);
            suite.precision.budget_s = purse.share(weight);
            (suite.precision.pairs, suite.precision.least_pairs) = (2, 2);
            let mut machine = Machine { takes, ..Machine::new(1, 0.01) };
            let result = session::run(&suite, setting(1), &mut machine, &mut |_| {}).expect("a session");
            assert!(machine.clock <= suite.precision.budget_s + 1e-9, "{}: {}", suite.name, machine.clock);
            // Whom the budget cut short has not failed.
            assert!(result.runs.iter().all(|run| run.failed.is_none()), "{}", suite.name);
            spent += machine.clock;
            compared += usize::from(result.conclusion().verdict != Some(Verdict::Invalid));
            purse.spend(weight, machine.clock);
        }
        assert!(spent <= TOTAL + 1e-6, "{spent} s with processes of {takes:?} s");
        assert!(takes.0 > 5.0 || compared == 5, "{compared} of 5 suites said something with processes of {takes:?} s");
    }
}

/// The version of `pellucid lab selftest` that takes no time.
#[test]
fn identical_builds_are_not_called_different_and_a_slowed_one_is_found_or_left_open() {
    let trial = Trial { sessions: 20, pairs: 12, slow: 0.03 };
    let suite = selftest::suite([Path::new("one"), Path::new("two")], &trial);
    suite.check().expect("a suite");
    let tried = |noise: f64| {
        let begin = |seed: u64| (setting(seed), Machine::new(seed, noise));
        selftest::run(&suite, &trial, begin, |_, _| {}).expect("tried")
    };
    let quiet = tried(0.003);
    assert!(quiet.false_verdicts <= 2 && quiet.found >= 18 && quiet.missed == 0 && quiet.holds(), "{quiet:?}");
    let noisy = tried(0.03);
    assert!(noisy.false_verdicts <= 2 && noisy.missed <= 2 && noisy.holds(), "{noisy:?}");
    assert!(noisy.open >= 10 && noisy.pairs_needed.is_some_and(|pairs| pairs > 12), "{noisy:?}");
    assert!(noisy.text().contains("pairs would tell"), "{}", noisy.text());
    assert!(quiet.text().contains("the lab can be believed here"), "{}", quiet.text());
}
