//! `pellucid lab construction`: time and memory to construct models, tokenizers and runs.

use super::{exit_with, print, say};
use crate::args::{LabConstructionArgs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use crate::progress::progress_bar;
pub use pellucid_lab::construction::TITLE;
use pellucid_lab::construction::measure::{ConstructionResult, Processes, measure, startup};
use pellucid_lab::construction::{Fixture, NAME, OLD_NAME, registry, report};
use pellucid_lab::stats;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Current and former name of the suite.
pub const NAMES: [&str; 2] = [NAME, OLD_NAME];
/// Number of empty processes that `--benchmark-startup` starts.
const STARTUP_RUNS: usize = 5;

pub fn run(args: LabConstructionArgs) -> Result<(), Failure> {
    [&args.json, &args.md].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    if args.sources.is_some() {
        say("--sources is ignored: uses in test sources are no longer counted");
    }
    if args.benchmark_startup {
        return benchmark_startup();
    }
    let result = measure_fixtures(args.runs as usize, args.max_fixtures, args.seed)?;
    write(&result, args.json.as_ref(), args.md.as_ref())?;
    if args.md.is_none() {
        print(&report::markdown(&result))?;
    }
    match &result.invalid {
        None => Ok(()),
        Some(why) => {
            say(&format!("invalid: {why}"));
            exit_with(5, true)
        }
    }
}

/// The arguments of `lab run construction`.
pub fn as_suite(options: &SuiteOptions) -> LabConstructionArgs {
    LabConstructionArgs {
        runs: options.pairs.unwrap_or(5),
        max_fixtures: None,
        benchmark_startup: false,
        sources: None,
        seed: options.seed,
        json: options.outputs.out.clone(),
        md: options.outputs.markdown.clone(),
    }
}

/// Measures the fixtures, with a bar or lines on stderr.
pub fn measure_fixtures(runs: usize, max_fixtures: Option<usize>, seed: u64) -> Result<ConstructionResult, Failure> {
    let fixtures: Vec<&Fixture> = registry::FIXTURES.iter().take(max_fixtures.unwrap_or(usize::MAX)).collect();
    let bar = std::io::stderr().is_terminal().then(|| {
        progress_bar((runs * fixtures.len()) as u64, "construction [{bar:24}] {percent:>3}% {elapsed}/{eta}  {msg}")
    });
    let mut children = children()?;
    let result = measure(&fixtures, runs, seed, &mut children, &mut |name, round| match &bar {
        Some(bar) => {
            bar.set_message(name.to_string());
            bar.inc(1);
        }
        None => say(&format!("{name} pair {}", round + 1)),
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(result)
}

/// Writes the result to the requested files.
pub fn write(result: &ConstructionResult, json: Option<&PathBuf>, md: Option<&PathBuf>) -> Result<(), Failure> {
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(result).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    md.map_or(Ok(()), |path| files::write(path, report::markdown(result).as_bytes()))
}

fn children() -> Result<Processes, Failure> {
    Ok(Processes { pellucid: crate::own_program()? })
}

fn benchmark_startup() -> Result<(), Failure> {
    match startup(STARTUP_RUNS, &mut children()?) {
        Ok(seconds) => {
            let (low, high) = (stats::quantile(&seconds, 0.0), stats::quantile(&seconds, 1.0));
            print(&format!(
                "{STARTUP_RUNS} empty processes\nAverage: {:.3}s\nMin: {low:.3}s\nMax: {high:.3}s\nRange: {:.3}s\n",
                stats::mean(&seconds),
                high - low
            ))
        }
        Err(why) => {
            say(&format!("invalid: {why}"));
            exit_with(5, true)
        }
    }
}
