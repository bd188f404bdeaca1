//! `pellucid lab`: measurements that can be believed.

mod all;
mod construction;
mod history;
mod identify;
mod peers;
mod performance;
mod selftest;
mod session;
mod tracing_cost;
mod worker_binary;

use super::{print, print_json, say};
use crate::args::{BaselineCommand, LabCommand, LabCompareArgs, LabOutputs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use pellucid_lab::baseline::{self, Shelf};
use pellucid_lab::construction::child;
use pellucid_lab::result::{SCHEMA_TEXT, SessionResult};
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{builtin_suites, noise, report, roofline, worker};
use pellucid_models::pull;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Worker => print_json(&worker::answer(&asked()?).map_err(failure)?),
        LabCommand::Fixture => print_json(&child::answer(&asked()?)),
        LabCommand::Roofline => print_json(&roofline::measure(&asked()?).map_err(failure)?),
        LabCommand::PerformanceWorker => print_json(&pellucid_lab::performance::measure(&asked()?).map_err(failure)?),
        LabCommand::Run(args) if construction::NAMES.contains(&args.suite.as_str()) => {
            construction::run(construction::as_suite(&args.options))
        }
        LabCommand::Run(args) if identify::NAMES.contains(&args.suite.as_str()) => {
            identify::run(identify::as_suite(&args.options))
        }
        LabCommand::Run(args) => run_suite(&args.suite, args.options),
        LabCommand::Speed(options) => run_suite("speed", options),
        LabCommand::Capture(options) => run_suite("capture", options),
        LabCommand::Startup(options) => run_suite("startup", options),
        LabCommand::Identify(args) => identify::run(args),
        LabCommand::TracingCost(args) => tracing_cost::run(args),
        LabCommand::Performance(args) => performance::run(args),
        LabCommand::Peers(args) if args.families.is_empty() => run_suite("peers", args.options),
        LabCommand::Peers(args) => peers::run(args),
        LabCommand::Construction(args) => construction::run(args),
        LabCommand::All(args) => all::run(args),
        LabCommand::List => list(),
        LabCommand::Schema => print(SCHEMA_TEXT),
        LabCommand::Compare(args) => compare(args),
        LabCommand::History(args) => history::run(args),
        LabCommand::Noise { seconds, json } => look_at_noise(seconds, json),
        LabCommand::Selftest(args) => selftest::run(args),
        LabCommand::Baseline(command) => keep(command),
        LabCommand::Report { result, outputs } => {
            let result = baseline::read(&result).map_err(failure)?;
            write_outputs(&result, &outputs)?;
            print(&report::text(&result))
        }
    }
}

/// What a hidden command is asked, as JSON on stdin.
fn asked<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("stdin: {error}"), "send one JSON request"))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("not a request: {error}"), "crates/lab/src/protocol.rs says what a request is")
    })
}

fn list() -> Result<(), Failure> {
    let mut titles = vec![(construction::NAMES[0], construction::TITLE.to_string())];
    titles.push((identify::NAMES[0], identify::TITLE.to_string()));
    for name in builtin_suites::names() {
        let suite = builtin_suites::named(name).and_then(Result::ok);
        titles.push((name, suite.map(|suite| suite.title).unwrap_or_default()));
    }
    titles.sort();
    print(&titles.iter().map(|(name, title)| format!("{name:<12} {title}\n")).collect::<String>())
}

fn run_suite(name: &str, options: SuiteOptions) -> Result<(), Failure> {
    for path in [&options.outputs.out, &options.outputs.html, &options.outputs.markdown, &options.outputs.bencher] {
        files::check(path.as_deref())?;
    }
    let kept = options.baseline.as_deref().map(|name| shelf()?.load(name).map_err(failure)).transpose()?;
    let result = session::measure(name, &options)?;
    write_outputs(&result, &options.outputs)?;
    print(&report::text(&result))?;
    let mut code = result.exit_code();
    if let Some(kept) = &kept {
        let comparisons = baseline::compare(kept, &result, false).map_err(failure)?;
        print("\nagainst the baseline:\n")?;
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
        if comparisons.iter().any(|c| c.verdict == Verdict::Regressed) {
            code = 1;
        }
    }
    end(code, options.gate)
}

/// Ends with a verdict's code. Too few pairs fail only where somebody asked for a gate.
fn end(code: i32, gate: bool) -> Result<(), Failure> {
    let code = if code == 4 && !gate { 0 } else { code };
    if code == 0 { Ok(()) } else { std::process::exit(code) }
}

fn write_outputs(result: &SessionResult, outputs: &LabOutputs) -> Result<(), Failure> {
    if let Some(path) = &outputs.out {
        baseline::write(path, result).map_err(failure)?;
    }
    if let Some(path) = &outputs.html {
        files::write(path, report::html(result).as_bytes())?;
    }
    if let Some(path) = &outputs.markdown {
        files::write(path, report::markdown(result).as_bytes())?;
    }
    if let Some(path) = &outputs.bencher {
        files::write(path, format!("{:#}\n", report::bencher(result)).as_bytes())?;
    }
    Ok(())
}

/// A result by its file or its baseline's name.
fn result_named(name: &str) -> Result<SessionResult, Failure> {
    let path = Path::new(name);
    if path.exists() { baseline::read(path) } else { shelf()?.load(name) }.map_err(failure)
}

fn compare(args: LabCompareArgs) -> Result<(), Failure> {
    let (before, after) = (result_named(&args.before)?, result_named(&args.after)?);
    let comparisons = baseline::compare(&before, &after, args.force).map_err(failure)?;
    if args.json {
        print_json(&comparisons)?;
    } else {
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
    }
    if comparisons.is_empty() {
        say("nothing could be compared: the results have no workload and variant in common with two processes each");
        return end(5, true);
    }
    match comparisons.iter().any(|comparison| comparison.verdict == Verdict::Regressed) {
        true => Err(Failure::no("something regressed", "see the lines above")),
        false => Ok(()),
    }
}

fn look_at_noise(seconds: f64, json: bool) -> Result<(), Failure> {
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage(format!("{seconds} seconds"), "give between 0 and 3600"));
    }
    let found = noise::measure(Duration::from_secs_f64(seconds));
    if json {
        return print_json(&found);
    }
    let stolen = found.stolen.map_or_else(|| "unknown".into(), |share| format!("{:.2} %", share * 100.0));
    print(&format!(
        "{}\n\nspread of one run   {:.2} %\nslowest twentieth  +{:.1} %\ndrift               {:.2} %\nstolen              {stolen}\npairs to see 2 %    {}\n",
        found.verdict(),
        found.spread * 100.0,
        found.slowest * 100.0,
        found.drift * 100.0,
        found.pairs_for_two_percent,
    ))
}

fn keep(command: BaselineCommand) -> Result<(), Failure> {
    let shelf = shelf()?;
    match command {
        BaselineCommand::Save { name, result } => {
            let result = baseline::read(&result).map_err(failure)?;
            let path = shelf.save(&name, &result).map_err(failure)?;
            say(&format!("kept as {}", path.display()));
            Ok(())
        }
        BaselineCommand::List => shelf.names().iter().try_for_each(|name| print(&format!("{name}\n"))),
        BaselineCommand::Show { name } => print(&report::text(&shelf.load(&name).map_err(failure)?)),
    }
}

/// Where baselines are kept.
fn shelf() -> Result<Shelf, Failure> {
    Ok(Shelf::new(pull::cache_dir()?.join("lab")))
}

fn failure(error: pellucid_lab::Error) -> Failure {
    match error {
        pellucid_lab::Error::Model(error) => error.into(),
        pellucid_lab::Error::Mismatch(_) => {
            Failure::usage(error.to_string(), "compare results of one machine, build and model, or say --force")
        }
        pellucid_lab::Error::NoWorker { .. } => Failure::usage(error.to_string(), worker_binary::HINT),
        other => Failure::usage(other.to_string(), "`pellucid lab --help` and docs/lab.md tell more"),
    }
}
