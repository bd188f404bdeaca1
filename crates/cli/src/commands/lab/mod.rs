//! `pellucid lab`: measurements that can be believed.

mod all;
mod session;

use super::{print, print_json, say};
use crate::args::{BaselineCommand, LabCommand, LabCompareArgs, LabOutputs, LabRunArgs};
use crate::failure::Failure;
use crate::files;
use pellucid_lab::baseline::{self, Shelf};
use pellucid_lab::protocol::Request;
use pellucid_lab::result::{SCHEMA_TEXT, SessionResult};
use pellucid_lab::verdict::Verdict;
use pellucid_lab::{noise, report, suites, worker};
use pellucid_models::pull;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub fn run(command: LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Worker => answer(),
        LabCommand::Run(args) => run_suite(args),
        LabCommand::All(args) => all::run(args),
        LabCommand::List => list(),
        LabCommand::Schema => print(SCHEMA_TEXT),
        LabCommand::Compare(args) => compare(args),
        LabCommand::Noise { seconds, json } => look_at_noise(seconds, json),
        LabCommand::Baseline(command) => keep(command),
        LabCommand::Report { result, outputs } => {
            let result = baseline::read(&result).map_err(failure)?;
            write_outputs(&result, &outputs)?;
            print(&report::text(&result))
        }
    }
}

fn answer() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::usage(format!("stdin: {error}"), "send one JSON request"))?;
    let request: Request = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("not a request: {error}"), "crates/lab/src/protocol.rs says what a request is")
    })?;
    print_json(&worker::answer(&request).map_err(failure)?)
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for name in suites::names() {
        if let Some(Ok(suite)) = suites::named(name) {
            text += &format!("{name:<10} {}\n", suite.title);
        }
    }
    print(&text)
}

fn run_suite(args: LabRunArgs) -> Result<(), Failure> {
    for path in [&args.outputs.out, &args.outputs.html, &args.outputs.markdown, &args.outputs.bencher] {
        files::check(path.as_deref())?;
    }
    let kept = args.baseline.as_deref().map(|name| shelf()?.load(name).map_err(failure)).transpose()?;
    let result = session::measure(&args)?;
    write_outputs(&result, &args.outputs)?;
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
    end(code, args.gate)
}

/// Ends with a verdict's code. Without a gate only what is certain to be wrong fails.
fn end(code: i32, gate: bool) -> Result<(), Failure> {
    let code = if gate || code == 1 { code } else { 0 };
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

fn compare(args: LabCompareArgs) -> Result<(), Failure> {
    let shelf = shelf()?;
    let read = |name: &str| {
        let path = Path::new(name);
        if path.exists() { baseline::read(path) } else { shelf.load(name) }
    };
    let (before, after) = (read(&args.before).map_err(failure)?, read(&args.after).map_err(failure)?);
    let comparisons = baseline::compare(&before, &after, args.force).map_err(failure)?;
    if args.json {
        print_json(&comparisons)?;
    } else {
        comparisons.iter().try_for_each(|comparison| print(&format!("{}\n", report::line(comparison))))?;
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
        other => Failure::usage(other.to_string(), "`pellucid lab --help` and docs/lab.md tell more"),
    }
}
