//! Simulated sessions: noise, drift and failing workers, without real time passing.

use pellucid_lab::check::CellState;
use pellucid_lab::environment::Environment;
use pellucid_lab::executor::{Executor, FailureKind, WorkerOutcome};
use pellucid_lab::protocol::{Answer, Request};
use pellucid_lab::result::{Run, SessionResult};
use pellucid_lab::session::{self, SessionContext};
use pellucid_lab::stats::{self, Rng};
use pellucid_lab::suite::{Suite, Variant};
use pellucid_lab::verdict::Verdict;
use std::collections::HashMap;
use std::time::Duration;

/// A machine with a simulated clock.
struct Machine {
    random: Rng,
    /// Standard deviation of one process.
    noise: f64,
    /// Drift as an AR(1) process: standard deviation of a step, and persistence.
    drift: (f64, f64),
    level: f64,
    /// Slowdown factor per variant.
    factors: HashMap<String, f64>,
    /// Fixed outcomes of failing variants.
    broken: HashMap<String, WorkerOutcome>,
    clock: f64,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine {
            random: Rng::new(seed),
            noise: 0.01,
            drift: (0.0, 0.95),
            level: 0.0,
            factors: HashMap::new(),
            broken: HashMap::new(),
            clock: 0.0,
        }
    }

    /// Returns the seconds of the next process.
    fn next(&mut self, variant: &str) -> f64 {
        self.level = self.drift.1 * self.level + self.drift.0 * self.random.normal();
        let noise = self.noise * self.random.normal();
        0.1 * self.factors.get(variant).copied().unwrap_or(1.0) * (self.level + noise).exp()
    }
}

fn answer(seconds: f64) -> Answer {
    Answer {
        engine: "simulated".into(),
        load_to_first_token_s: 1.0,
        samples_s: vec![seconds],
        peak_bytes: 1000,
        weight_bytes: 1000,
        top: vec![(3, 1.0), (4, 0.5)],
        values: vec![1.0, 2.0],
        ..Answer::default()
    }
}

impl Executor for Machine {
    fn run(&mut self, variant: &Variant, _: &Request, _: Duration) -> WorkerOutcome {
        let seconds = self.next(&variant.id);
        self.clock += 1.0;
        match self.broken.get(&variant.id) {
            Some(outcome) => outcome.clone(),
            None => WorkerOutcome::Answered(Box::new(answer(seconds))),
        }
    }

    fn elapsed(&self) -> f64 {
        self.clock
    }
}

fn suite(variants: &[&str]) -> Suite {
    let mut text =
        String::from("name = \"simulated\"\nreference = \"a\"\n[precision]\nbudget_s = 1e6\nhalf_width = 0.004\n");
    for id in variants {
        text += &format!("[[variant]]\nid = \"{id}\"\n");
    }
    text += "[[workload]]\nid = \"w\"\njob = \"prefill\"\ntokens = 4\n";
    Suite::parse(&text, "simulated").expect("a suite")
}

fn setting(seed: u64, earlier: Vec<Run>) -> SessionContext {
    SessionContext {
        model: "none".into(),
        assume: None,
        seed,
        environment: Environment::default(),
        command: vec![],
        earlier,
    }
}

fn run(suite: &Suite, machine: &mut Machine, seed: u64) -> SessionResult {
    session::run(suite, setting(seed, vec![]), machine, &mut |_| {}).expect("a session")
}

fn verdict_on(result: &SessionResult, variant: &str) -> Verdict {
    let of = |c: &&pellucid_lab::result::Comparison| c.variant == variant && c.reference != variant;
    result.comparisons.iter().find(of).expect("compared").verdict
}

#[test]
fn identical_variants_seldom_differ_and_a_slower_one_is_detected() {
    let suite = suite(&["a", "b"]);
    let (mut wrong, mut found) = (0, 0);
    for seed in 0..200 {
        let mut machine = Machine { drift: (0.01, 0.95), ..Machine::new(seed) };
        let verdict = verdict_on(&run(&suite, &mut machine, seed), "b");
        wrong += usize::from(matches!(verdict, Verdict::Improved | Verdict::Regressed));
        let mut machine = Machine { drift: (0.01, 0.95), factors: [("b".into(), 1.06)].into(), ..Machine::new(seed) };
        found += usize::from(verdict_on(&run(&suite, &mut machine, seed), "b") == Verdict::Regressed);
    }
    // A false positive must exceed both the margin and the noise floor, so they are far rarer than
    // 10 %.
    assert!(wrong <= 4, "{wrong} of 200 identical variants were called different");
    assert!(found >= 190, "{found} of 200 variants that are 6 % slower were found");
}

#[test]
fn a_small_difference_is_detected_or_the_pairs_needed_are_estimated() {
    let suite = suite(&["a", "b"]);
    for seed in 0..50 {
        let mut machine = Machine { factors: [("b".into(), 1.03)].into(), ..Machine::new(seed) };
        let result = run(&suite, &mut machine, seed);
        let comparison = result.comparisons.iter().find(|c| c.variant == "b").expect("compared");
        match comparison.verdict {
            Verdict::Regressed => {}
            Verdict::Inconclusive => assert!(comparison.pairs_needed.is_some_and(|n| n > comparison.pairs)),
            other => panic!("seed {seed}: 3 % slower is {other}: {comparison:?}"),
        }
    }
}

#[test]
fn pairs_alternate_and_pairings_take_turns() {
    let suite = suite(&["a", "b", "c"]);
    let result = run(&suite, &mut Machine::new(5), 5);
    for pairing in ["a → a", "a → b", "a → c"] {
        let runs: Vec<&Run> = result.runs.iter().filter(|run| run.pairing == pairing).collect();
        assert!(runs.len() >= 8 && runs.len().is_multiple_of(2), "{pairing}: {}", runs.len());
        let firsts: Vec<bool> = runs.chunks(2).map(|pair| pair[0].is_reference).collect();
        assert!(firsts.windows(2).all(|two| two[0] != two[1]), "{pairing} is not ABBA: {firsts:?}");
    }
    let first_round: Vec<&str> = result.runs[..6].iter().map(|run| run.pairing.as_str()).collect();
    assert!(["a → a", "a → b", "a → c"].iter().all(|pairing| first_round.contains(pairing)), "{first_round:?}");
    assert_eq!(result.runs, run(&suite, &mut Machine::new(5), 5).runs, "a seed repeats the order");
    let other = run(&suite, &mut Machine::new(5), 6).runs;
    assert!(result.runs.iter().zip(&other).any(|(a, b)| a.pairing != b.pairing), "another seed has another order");
}

#[test]
fn failing_workers_are_recorded_and_the_session_continues() {
    let suite = suite(&["a", "b", "crash", "wrong"]);
    let mut machine = Machine::new(1);
    let crash = WorkerOutcome::Failed { kind: FailureKind::Killed, message: "signal 9".into() };
    let mut lie = answer(0.001);
    lie.top[0].1 = 2.0;
    machine.broken = [("crash".into(), crash), ("wrong".into(), WorkerOutcome::Answered(Box::new(lie)))].into();
    let result = run(&suite, &mut machine, 1);
    let state = |variant: &str| result.cells.iter().find(|cell| cell.variant == variant).expect("a cell").clone();
    assert_eq!(state("b").state, CellState::Supported);
    assert_eq!(state("crash").state, CellState::Error);
    assert!(state("crash").why.contains("was killed: signal 9"), "{}", state("crash").why);
    assert_eq!(state("wrong").state, CellState::SilentlyWrong);
    // Neither has a time, and a wrong Pellucid cell fails the session.
    assert!(result.comparisons.iter().all(|c| c.variant == "a" || c.variant == "b"), "{:?}", result.comparisons);
    assert_eq!((result.conclusion().verdict, result.exit_code()), (Some(Verdict::Regressed), 1));
}

#[test]
fn a_reference_that_differs_from_itself_makes_the_session_invalid() {
    /// Every second process is slower.
    struct Falling(Machine, bool);
    impl Executor for Falling {
        fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
            // The second side of each pair is slower.
            self.1 = !self.1;
            match self.0.run(variant, request, limit) {
                WorkerOutcome::Answered(mut answer) => {
                    answer.samples_s[0] *= if self.1 { 1.0 } else { 1.5 };
                    WorkerOutcome::Answered(answer)
                }
                other => other,
            }
        }

        fn elapsed(&self) -> f64 {
            self.0.elapsed()
        }
    }
    // A fixed order would show a difference; ABBA turns it into noise.
    let suite = suite(&["a", "b"]);
    let result =
        session::run(&suite, setting(3, vec![]), &mut Falling(Machine::new(3), false), &mut |_| {}).expect("a session");
    assert!(result.comparisons.iter().all(|c| c.verdict != Verdict::Regressed && c.verdict != Verdict::Improved));
    let conclusion = result.conclusion();
    assert!(matches!(conclusion.verdict, Some(Verdict::Inconclusive | Verdict::Invalid)), "{conclusion:?}");
}

#[test]
fn an_interrupted_session_is_resumed() {
    let suite = suite(&["a", "b"]);
    let whole = run(&suite, &mut Machine::new(8), 8);
    let earlier: Vec<Run> = whole.runs[..7].to_vec();
    let mut fresh = 0;
    let mut machine = Machine::new(99);
    let resumed = session::run(&suite, setting(8, earlier.clone()), &mut machine, &mut |progress| {
        fresh += usize::from(!earlier.iter().any(|run| run.answer == progress.run.answer));
    })
    .expect("a session");
    assert_eq!(resumed.runs[..7], whole.runs[..7], "earlier runs are reused");
    assert_eq!(machine.clock as usize, fresh, "only the rest took time");
    assert!(resumed.runs.len() > 7);
}

#[test]
fn a_session_ends_with_its_budget_and_reports_it() {
    let mut suite = suite(&["a", "b"]);
    suite.precision.budget_s = 9.0;
    let mut machine = Machine::new(2);
    let result = run(&suite, &mut machine, 2);
    assert!(result.session.ended_early.contains("budget of 9 s"), "{}", result.session.ended_early);
    assert!(result.runs.len() <= 9 && machine.clock <= 9.0);
}

#[test]
fn environment_sizes_are_random_and_reproducible() {
    /// Records the size of each process's environment.
    struct Recording(Machine, Vec<usize>);
    impl Executor for Recording {
        fn run(&mut self, variant: &Variant, request: &Request, limit: Duration) -> WorkerOutcome {
            self.1.push(variant.env.values().map(String::len).sum());
            self.0.run(variant, request, limit)
        }

        fn elapsed(&self) -> f64 {
            self.0.elapsed()
        }
    }
    let suite = suite(&["a", "b"]);
    let mut recording = Recording(Machine::new(1), vec![]);
    let result = session::run(&suite, setting(1, vec![]), &mut recording, &mut |_| {}).expect("a session");
    let recorded: Vec<usize> = result.runs.iter().map(|run| run.padding).collect();
    assert_eq!(recorded, recording.1, "the recorded padding is the applied one");
    let different: std::collections::BTreeSet<usize> = recorded.iter().copied().collect();
    assert!(different.len() > recorded.len() * 3 / 4 && recorded.iter().all(|n| *n < 4096), "{recorded:?}");
    let again: Vec<usize> = run(&suite, &mut Machine::new(1), 1).runs.iter().map(|run| run.padding).collect();
    assert_eq!(recorded, again);
}

#[test]
fn a_ladder_compares_neighbors_and_adds_up() {
    let text = "name = \"l\"\nreference = \"a\"\nladder = [\"a\", \"b\", \"c\"]\n[precision]\nbudget_s = 1e6\nhalf_width = 0.002\npairs = 30\n\
        [[variant]]\nid = \"a\"\n[[variant]]\nid = \"b\"\njob = { capture_layers = { layers = 4 } }\n\
        [[variant]]\nid = \"c\"\njob = { capture_layers = { layers = 8 } }\n[[workload]]\nid = \"w\"\njob = \"prefill\"\ntokens = 4\n";
    let suite = Suite::parse(text, "l").expect("a suite");
    let mut machine = Machine { factors: [("b".into(), 1.04), ("c".into(), 1.08)].into(), ..Machine::new(4) };
    let result = run(&suite, &mut machine, 4);
    let pairings: Vec<(&str, &str)> =
        result.comparisons.iter().map(|c| (c.reference.as_str(), c.variant.as_str())).collect();
    assert_eq!(pairings, [("a", "a"), ("a", "b"), ("b", "c"), ("a", "c")]);
    assert!(
        pellucid_lab::report::ladder_summary(&result).contains("they agree"),
        "{}",
        pellucid_lab::report::ladder_summary(&result)
    );
    // 0.1 s plus 1 % per captured layer.
    let model = &result.cost_models[0];
    assert!((model.base.mean - 0.1).abs() < 0.002 && (model.per_layer.mean - 0.001).abs() < 2e-4, "{model:?}");
    assert!(model.per_layer.low < 0.001 && 0.001 < model.per_layer.high);
}

/// False positive rates and interval widths of three designs (blocks, unpaired alternation, ABBA
/// pairs), for equal variants on a drifting machine.
#[test]
fn paired_abba_order_has_the_nominal_error_rate_under_drift() {
    const RUNS: usize = 20;
    let rates = |drift: f64| {
        let mut alarms = [0.0f64; 3];
        let mut widths = [0.0f64; 3];
        let sessions = 1500;
        for seed in 0..sessions {
            let mut machine = Machine { drift: (drift, 0.95), ..Machine::new(seed) };
            // Burn-in of the drift.
            (0..100).for_each(|_| _ = machine.next("a"));
            let logs: Vec<f64> = (0..2 * RUNS).map(|_| machine.next("a").ln()).collect();
            let blocks = (logs[..RUNS].to_vec(), logs[RUNS..].to_vec());
            let alternating: (Vec<f64>, Vec<f64>) =
                (logs.iter().step_by(2).copied().collect(), logs.iter().skip(1).step_by(2).copied().collect());
            let abba: Vec<f64> = logs
                .chunks(2)
                .enumerate()
                .map(|(pair, two)| if pair % 2 == 0 { two[1] - two[0] } else { two[0] - two[1] })
                .collect();
            for (method, estimate) in [
                welch(&blocks.0, &blocks.1),
                welch(&alternating.0, &alternating.1),
                stats::confidence_interval(&abba, seed),
            ]
            .into_iter()
            .enumerate()
            {
                alarms[method] += f64::from(estimate.is_significant()) / sessions as f64;
                widths[method] += 2.0 * estimate.half_width() / sessions as f64;
            }
        }
        (alarms, widths)
    };
    let (still, _) = rates(0.0);
    assert!(still.iter().all(|rate| (0.03..0.075).contains(rate)), "without drift all designs are valid: {still:?}");
    for drift in [0.01, 0.02] {
        let (alarms, widths) = rates(drift);
        assert!(alarms[0] > 0.5, "blocks give false positives: {alarms:?}");
        assert!(
            alarms[1] < 0.02 && widths[1] > 1.5 * widths[2],
            "unpaired alternation is too conservative: {alarms:?} {widths:?}"
        );
        assert!((0.03..0.08).contains(&alarms[2]), "pairs keep the nominal rate: {alarms:?}");
    }
}

/// Welch's t interval of two independent samples.
fn welch(a: &[f64], b: &[f64]) -> stats::Estimate {
    let mean = stats::mean(b) - stats::mean(a);
    let error = (stats::standard_deviation(a).powi(2) / a.len() as f64
        + stats::standard_deviation(b).powi(2) / b.len() as f64)
        .sqrt();
    let half = stats::t_quantile(2 * a.len() - 2) * error;
    stats::Estimate { mean, low: mean - half, high: mean + half }
}
