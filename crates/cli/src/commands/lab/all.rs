//! `pellucid lab all`: every suite that can run here, one report each.

use super::{construction, end, identify, print, say, session, write_outputs};
use crate::args::{AssumeArg, LabAllArgs, LabOutputs, SuiteOptions};
use crate::failure::Failure;
use pellucid_lab::budget::{self, Purse};
use pellucid_lab::identify::result::Settings;
use pellucid_lab::{builtin_suites, report};
use std::time::Instant;

/// What `--quick` gives each comparison and everything together: enough to see states and gross losses.
const QUICK_PAIRS: u32 = 2;
const QUICK_SECONDS: f64 = 540.0;
/// Pairs of each fixture, quickly and otherwise.
const FIXTURE_PAIRS: (usize, usize) = (2, 5);
/// What the fixtures weigh among the suites: each takes two short processes a pair.
const FIXTURE_WEIGHT: f64 = 15.0;
/// Iterations of each benchmark of `identify`, quickly.
const QUICK_ITERATIONS: usize = 20;
/// Seconds below which a suite is not begun.
const TOO_LITTLE: f64 = 5.0;

pub fn run(args: LabAllArgs) -> Result<(), Failure> {
    std::fs::create_dir_all(&args.dir).map_err(|error| {
        Failure::usage(format!("cannot make {}: {error}", args.dir.display()), "give a directory of your own: --dir")
    })?;
    let mut codes = Vec::new();
    let mut summary = format!("{:<12} {:>5} {:>7}  {}\n", "suite", "runs", "seconds", "verdict");
    let weights: Vec<(&str, f64)> = builtin_suites::names().map(|name| (name, weight(name, &args))).collect();
    let mut purse = Purse::new(QUICK_SECONDS, weights.iter().map(|(_, weight)| *weight).chain([FIXTURE_WEIGHT]));
    codes.push(run_identify(&args, &mut summary)?);
    let started = Instant::now();
    codes.push(run_construction(&args, &mut summary)?);
    purse.spend(FIXTURE_WEIGHT, started.elapsed().as_secs_f64());
    for (name, weight) in weights {
        say(&format!("== {name}"));
        let (budget, started) = (purse.share(weight), Instant::now());
        if args.quick && budget < TOO_LITTLE {
            say(&format!("left out: the {QUICK_SECONDS} seconds are spent"));
            summary += &format!("{name:<12} {:>5} {:>7}  not run: the time is spent\n", 0, 0);
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
            // A suite of peers cannot run where there is no Python; that is known beforehand and no finding.
            Err(failure) if failure.code() == 5 => {
                say(&failure.to_string());
                summary += &format!("{name:<12} {:>5} {:>7}  not run: nobody to compare with\n", 0, 0);
            }
            Err(failure) => return Err(failure),
        }
        purse.spend(weight, started.elapsed().as_secs_f64());
    }
    print(&summary)?;
    say(&format!("reports are in {}", args.dir.display()));
    // A loss is worse than a machine that cannot tell, which is worse than too few pairs.
    let worst = [1, 5, 4].into_iter().find(|code| codes.contains(code)).unwrap_or(0);
    end(worst, args.gate)
}

/// What a suite weighs here, without those who are not here.
fn weight(name: &str, args: &LabAllArgs) -> f64 {
    let Some(Ok(mut suite)) = builtin_suites::named(name) else { return 0.0 };
    suite.variants.retain(|variant| variant.is_available(args.python.as_deref()));
    budget::weight(&suite)
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

/// Runs the suite `construction`, which has no session of pairs; returns its exit code.
fn run_construction(args: &LabAllArgs, summary: &mut String) -> Result<i32, Failure> {
    say(&format!("== {}", construction::NAMES[0]));
    let started = Instant::now();
    let runs = if args.quick { FIXTURE_PAIRS.0 } else { FIXTURE_PAIRS.1 };
    let survey = construction::survey(runs, None, args.seed)?;
    let path = |ending: &str| args.dir.join(format!("{}.{ending}", construction::NAMES[0]));
    construction::write(&survey, Some(&path("json")), Some(&path("md")))?;
    let pairs: usize = survey.rows.iter().map(|row| row.pairs.len()).sum();
    let built = survey.rows.iter().filter(|row| row.cost.is_some()).count();
    let said = match &survey.invalid {
        Some(why) => format!("invalid: {why}"),
        None => format!("{built} of {} fixtures built", survey.rows.len()),
    };
    *summary +=
        &format!("{:<12} {:>5} {:>7.0}  {said}\n", construction::NAMES[0], 2 * pairs, started.elapsed().as_secs_f64());
    Ok(if survey.invalid.is_some() { 5 } else { 0 })
}

/// Runs the suite `identify`, which takes seconds and has no pairs either; returns its exit code.
fn run_identify(args: &LabAllArgs, summary: &mut String) -> Result<i32, Failure> {
    say(&format!("== {}", identify::NAMES[0]));
    let started = Instant::now();
    let iterations = if args.quick { QUICK_ITERATIONS } else { Settings::default().iterations };
    let found = identify::measure(&Settings { iterations, memory_profiling: true, ..Settings::default() })?;
    let path = |ending: &str| args.dir.join(format!("{}.{ending}", identify::NAMES[0]));
    identify::write(&found, Some(&path("json")), Some(&path("md")))?;
    let totals = &found.summary;
    let said = format!(
        "{} of {} answers wrong, {} gates missed",
        totals.wrong_outcomes, totals.total_benchmarks, totals.gates_missed
    );
    let (seconds, count) = (started.elapsed().as_secs_f64(), totals.total_benchmarks);
    *summary += &format!("{:<12} {count:>5} {seconds:>7.0}  {said}\n", identify::NAMES[0]);
    Ok(found.exit_code())
}
