//! `pellucid lab all`: runs every suite that can run here, with a report each.

use super::{exit_with, identify, print, say, session, sessions, write_outputs};
use crate::args::{AssumeArg, LabAllArgs, LabOutputs, SuiteOptions};
use crate::failure::Failure;
use pellucid_lab::budget::{self, TimeBudget};
use pellucid_lab::identify::result::IdentifySettings;
use pellucid_lab::{analysis_sessions, builtin_suites, report};
use std::time::Instant;

/// Pairs per comparison and total seconds with `--quick`: enough for correctness and large
/// regressions.
const QUICK_PAIRS: u32 = 2;
const QUICK_BUDGET_S: f64 = 540.0;
/// Processes per analysis session, with and without `--quick`.
const SESSION_RUNS: (u32, u32) = (2, 5);
/// Cost of the suite `sessions` in the shared budget: four short processes per round.
const SESSIONS_COST: f64 = 5.0;
/// Iterations per benchmark of `identify` with `--quick`.
const QUICK_ITERATIONS: usize = 20;
/// A suite with less time than this is not started.
const MIN_SUITE_BUDGET_S: f64 = 5.0;

pub fn run(args: LabAllArgs) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        Failure::usage(format!("cannot create {}: {error}", args.dir.display()), "choose another directory with --dir")
    })?;
    let mut codes = Vec::new();
    let mut summary = format!("{:<12} {:>5} {:>7}  {}\n", "suite", "runs", "seconds", "verdict");
    let costs: Vec<(&str, f64)> = builtin_suites::names().map(|name| (name, suite_cost(name, &args))).collect();
    let mut time_budget = TimeBudget::new(QUICK_BUDGET_S, costs.iter().map(|(_, cost)| *cost).chain([SESSIONS_COST]));
    codes.push(run_identify(&args, &mut summary)?);
    let started = Instant::now();
    codes.push(run_sessions(&args, &mut summary)?);
    time_budget.spend(SESSIONS_COST, started.elapsed().as_secs_f64());
    for (name, cost) in costs {
        say(&format!("== {name}"));
        let (budget, started) = (time_budget.share(cost), Instant::now());
        if args.quick && budget < MIN_SUITE_BUDGET_S {
            say(&format!("left out: the {QUICK_BUDGET_S} seconds are used up"));
            summary += &format!("{name:<12} {:>5} {:>7}  not run: the time is used up\n", 0, 0);
            codes.push(4);
            continue;
        }
        let options = options(name, &args, budget);
        match session::measure(name, &options) {
            Ok(result) => {
                write_outputs(&result, &options.outputs)?;
                print(&format!("{}\n", report::text(&result)))?;
                let (conclusion, runs) = (result.conclusion(), result.runs.len());
                summary += &format!("{name:<12} {runs:>5} {:>7.0}  {}\n", result.session.seconds, conclusion.name());
                codes.push(conclusion.exit_code());
            }
            // Without Python a suite of peers has nothing to compare; that is expected and not a
            // finding.
            Err(failure) if failure.code() == 5 => {
                say(&failure.to_string());
                summary += &format!("{name:<12} {:>5} {:>7}  not run: nothing to compare with\n", 0, 0);
            }
            Err(failure) => return Err(failure),
        }
        time_budget.spend(cost, started.elapsed().as_secs_f64());
    }
    print(&summary)?;
    say(&format!("reports are in {}", args.dir.display()));
    // Severity: a regression, then an invalid session, then an inconclusive one.
    let worst = [1, 5, 4].into_iter().find(|code| codes.contains(code)).unwrap_or(0);
    exit_with(worst, args.gate)
}

/// Returns the cost of a suite, counting only variants that can run here.
fn suite_cost(name: &str, args: &LabAllArgs) -> f64 {
    let Some(Ok(mut suite)) = builtin_suites::named(name) else { return 0.0 };
    suite.variants.retain(|variant| variant.is_available(args.python.as_deref()));
    budget::round_cost(&suite)
}

fn options(name: &str, args: &LabAllArgs, budget: f64) -> SuiteOptions {
    let path = |ending: &str| Some(args.dir.join(format!("{name}.{ending}")));
    SuiteOptions {
        model: args.model.clone(),
        assume: AssumeArg { assume: None },
        python: args.python.clone(),
        candle: false,
        only: vec![],
        pairs: args.quick.then_some(QUICK_PAIRS),
        budget: args.quick.then_some(budget),
        seed: args.seed,
        log: None,
        baseline: None,
        gate: args.gate,
        allocations: false,
        outputs: LabOutputs { out: path("json"), html: path("html"), markdown: path("md"), bencher: None },
    }
}

/// Runs the suite `sessions`, which compares nothing; returns its exit code.
fn run_sessions(args: &LabAllArgs, summary: &mut String) -> Result<i32, Failure> {
    say(&format!("== {}", analysis_sessions::NAME));
    let started = Instant::now();
    let options = SuiteOptions {
        pairs: Some(if args.quick { SESSION_RUNS.0 } else { SESSION_RUNS.1 }),
        ..options(analysis_sessions::NAME, args, 0.0)
    };
    let settings = sessions::as_suite(&options);
    let result = sessions::measure_sessions(&settings)?;
    sessions::write(&result, settings.json.as_ref(), settings.md.as_ref())?;
    let runs: usize = result.sessions.iter().map(|session| session.runs.len()).sum();
    let complete = result.sessions.iter().filter(|session| session.error.is_none()).count();
    let outcome = format!("{complete} of {} sessions complete", result.sessions.len());
    let seconds = started.elapsed().as_secs_f64();
    *summary += &format!("{:<12} {runs:>5} {seconds:>7.0}  {outcome}\n", analysis_sessions::NAME);
    Ok(sessions::exit_code(&result, args.gate))
}

/// Runs the suite `identify`, which takes seconds and is not a session either; returns its exit
/// code.
fn run_identify(args: &LabAllArgs, summary: &mut String) -> Result<i32, Failure> {
    say(&format!("== {}", identify::NAMES[0]));
    let started = Instant::now();
    let iterations = if args.quick { QUICK_ITERATIONS } else { IdentifySettings::default().iterations };
    let found =
        identify::measure(&IdentifySettings { iterations, memory_profiling: true, ..IdentifySettings::default() })?;
    let path = |ending: &str| args.dir.join(format!("{}.{ending}", identify::NAMES[0]));
    identify::write(&found, Some(&path("json")), Some(&path("md")))?;
    let totals = &found.summary;
    let outcome = format!(
        "{} of {} answers wrong, {} gates missed",
        totals.wrong_outcomes, totals.total_benchmarks, totals.gates_missed
    );
    let (seconds, count) = (started.elapsed().as_secs_f64(), totals.total_benchmarks);
    *summary += &format!("{:<12} {count:>5} {seconds:>7.0}  {outcome}\n", identify::NAMES[0]);
    Ok(found.exit_code())
}
