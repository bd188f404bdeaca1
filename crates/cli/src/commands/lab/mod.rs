//! `pellucid lab`: benchmarks in fresh processes.

mod all;
mod capture;
mod history;
mod identify;
mod peers;
mod performance;
mod selftest;
mod session;
mod sessions;
mod tracing_cost;
mod worker_binary;

use super::{print, print_json, say};
use crate::args::{BaselineCommand, LabCommand, LabCompareArgs, LabOutputs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use pellucid_lab::baseline::{self, BaselineStore};
use pellucid_lab::result::{SCHEMA_TEXT, SessionResult};
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{analysis_sessions, builtin_suites, noise, report, roofline, worker};
use pellucid_models::pull;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Worker => print_json(&worker::answer(&read_request()?).map_err(failure)?),
        LabCommand::CaptureWorker => capture::answer(),
        LabCommand::Roofline => print_json(&roofline::measure(&read_request()?).map_err(failure)?),
        LabCommand::PerformanceWorker => {
            print_json(&pellucid_lab::performance::measure(&read_request()?).map_err(failure)?)
        }
        LabCommand::Run(args) if args.suite == analysis_sessions::NAME => {
            sessions::run(sessions::as_suite(&args.options))
        }
        LabCommand::Run(args) if identify::NAMES.contains(&args.suite.as_str()) => {
            identify::run(identify::as_suite(&args.options))
        }
        LabCommand::Run(args) if args.suite == pellucid_lab::capture::NAME => {
            capture::run(capture::as_suite(&args.options)?)
        }
        LabCommand::Run(args) => run_suite(&args.suite, args.options),
        LabCommand::Speed(options) => run_suite("speed", options),
        LabCommand::Capture(args) => capture::run(args),
        LabCommand::Startup(options) => run_suite("startup", options),
        LabCommand::Identify(args) => identify::run(args),
        LabCommand::TracingCost(args) => tracing_cost::run(args),
        LabCommand::Performance(args) => performance::run(args),
        LabCommand::Peers(args) if args.families.is_empty() => run_suite("peers", args.options),
        LabCommand::Peers(args) => peers::run(args),
        LabCommand::Sessions(args) => sessions::run(args),
        LabCommand::All(args) => all::run(args),
        LabCommand::List => list(),
        LabCommand::Schema => print(SCHEMA_TEXT),
        LabCommand::Compare(args) => compare(args),
        LabCommand::History(args) => history::run(args),
        LabCommand::Noise { seconds, json } => measure_noise(seconds, json),
        LabCommand::Selftest(args) => selftest::run(args),
        LabCommand::Baseline(command) => run_baseline(command),
        LabCommand::Report { result, outputs } => {
            let result = baseline::read(&result).map_err(failure)?;
            write_outputs(&result, &outputs)?;
            print(&report::text(&result))
        }
    }
}

/// Reads the JSON request of a hidden command from stdin.
fn read_request<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("stdin: {error}"), "send one JSON request"))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("not a request: {error}"), "crates/lab/src/protocol.rs defines requests")
    })
}

fn list() -> Result<(), Failure> {
    let mut titles = vec![(analysis_sessions::NAME, analysis_sessions::TITLE.to_string())];
    titles.push((pellucid_lab::capture::NAME, pellucid_lab::capture::TITLE.to_string()));
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
    let earlier = options.baseline.as_deref().map(|name| baseline_store()?.load(name).map_err(failure)).transpose()?;
    let result = session::measure(name, &options)?;
    write_outputs(&result, &options.outputs)?;
    print(&report::text(&result))?;
    let mut code = result.exit_code();
    if let Some(earlier) = &earlier {
        let comparisons = baseline::compare(earlier, &result, false).map_err(failure)?;
        print("\nagainst the baseline:\n")?;
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
        if comparisons.iter().any(|c| c.verdict == Verdict::Regressed) {
            code = 1;
        }
    }
    exit_with(code, options.gate)
}

/// Exits with a verdict's code. `inconclusive` (4) fails only with `--gate`.
fn exit_with(code: i32, gate: bool) -> Result<(), Failure> {
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

/// Reads a result from a file or a named baseline.
fn result_named(name: &str) -> Result<SessionResult, Failure> {
    let path = Path::new(name);
    if path.exists() { baseline::read(path) } else { baseline_store()?.load(name) }.map_err(failure)
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
        say("nothing could be compared: the results share no workload and variant with at least two processes each");
        return exit_with(5, true);
    }
    match comparisons.iter().any(|comparison| comparison.verdict == Verdict::Regressed) {
        true => Err(Failure::no("something regressed", "see the lines above")),
        false => Ok(()),
    }
}

fn measure_noise(seconds: f64, json: bool) -> Result<(), Failure> {
    if !(seconds > 0.0 && seconds <= 3600.0) {
        return Err(Failure::usage(format!("{seconds} seconds"), "give between 0 and 3600"));
    }
    let found = noise::measure(Duration::from_secs_f64(seconds));
    if json {
        return print_json(&found);
    }
    let stolen = found.stolen.map_or_else(|| "unknown".into(), |share| format!("{:.2} %", share * 100.0));
    print(&format!(
        "{}\n\nspread (MAD)         {:.2} %\n95th percentile     +{:.1} %\ndrift                {:.2} %\nsteal time           {stolen}\npairs to detect 2 %  {}\n",
        found.verdict(),
        found.spread * 100.0,
        found.slowest * 100.0,
        found.drift * 100.0,
        found.pairs_for_two_percent,
    ))
}

fn run_baseline(command: BaselineCommand) -> Result<(), Failure> {
    let store = baseline_store()?;
    match command {
        BaselineCommand::Save { name, result } => {
            let result = baseline::read(&result).map_err(failure)?;
            let path = store.save(&name, &result).map_err(failure)?;
            say(&format!("saved as {}", path.display()));
            Ok(())
        }
        BaselineCommand::List => store.names().iter().try_for_each(|name| print(&format!("{name}\n"))),
        BaselineCommand::Show { name } => print(&report::text(&store.load(&name).map_err(failure)?)),
    }
}

/// Returns the directory of baselines.
fn baseline_store() -> Result<BaselineStore, Failure> {
    Ok(BaselineStore::new(pull::cache_dir()?.join("lab")))
}

fn failure(error: pellucid_lab::Error) -> Failure {
    match error {
        pellucid_lab::Error::Model(error) => error.into(),
        pellucid_lab::Error::Mismatch(_) => {
            Failure::usage(error.to_string(), "compare results of one machine, build and model, or use --force")
        }
        pellucid_lab::Error::NoWorker { .. } => Failure::usage(error.to_string(), worker_binary::HINT),
        other => Failure::usage(other.to_string(), "see `pellucid lab --help` and docs/lab.md"),
    }
}
