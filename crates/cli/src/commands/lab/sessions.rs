//! `pellucid lab sessions`: what constructing things costs.

use super::{end, print, say};
use crate::args::{LabSessionsArgs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use crate::progress::bar_of;
use pellucid_lab::sessions::measure::{Processes, Survey, measure, startup};
use pellucid_lab::sessions::{Fixture, registry, report, uses};
use pellucid_lab::stats;
use std::io::IsTerminal;
use std::path::PathBuf;

/// Empty processes that are started to see what starting costs.
const STARTUPS: usize = 5;

pub fn run(args: LabSessionsArgs) -> Result<(), Failure> {
    [&args.json, &args.md].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    if args.benchmark_startup {
        return start();
    }
    let survey = surveyed(args.runs as usize, args.max_fixtures, &args.sources, args.seed)?;
    write(&survey, args.json.as_ref(), args.md.as_ref())?;
    if args.md.is_none() {
        print(&report::markdown(&survey))?;
    }
    match &survey.invalid {
        None => Ok(()),
        Some(why) => {
            say(&format!("invalid: {why}"));
            end(5, true)
        }
    }
}

/// The arguments of `lab run sessions`, in this suite's own words.
pub fn as_suite(options: &SuiteOptions) -> LabSessionsArgs {
    LabSessionsArgs {
        runs: options.pairs.unwrap_or(5),
        max_fixtures: None,
        benchmark_startup: false,
        sources: ".".into(),
        seed: options.seed,
        json: options.outputs.out.clone(),
        md: options.outputs.markdown.clone(),
    }
}

/// Measures the fixtures, with a bar or lines on stderr.
pub fn surveyed(runs: usize, most: Option<usize>, sources: &std::path::Path, seed: u64) -> Result<Survey, Failure> {
    let fixtures: Vec<&Fixture> = registry::FIXTURES.iter().take(most.unwrap_or(usize::MAX)).collect();
    let uses = uses::count(sources, &fixtures);
    if uses.is_none() {
        say(&format!("no test sources under {}: uses are not counted (--sources names them)", sources.display()));
    }
    let bar = std::io::stderr()
        .is_terminal()
        .then(|| bar_of((runs * fixtures.len()) as u64, "sessions [{bar:24}] {percent:>3}% {elapsed}/{eta}  {msg}"));
    let mut children = children()?;
    let survey = measure(&fixtures, uses, runs, seed, &mut children, &mut |name, round| match &bar {
        Some(bar) => {
            bar.set_message(name.to_string());
            bar.inc(1);
        }
        None => say(&format!("{name} pair {}", round + 1)),
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(survey)
}

/// Writes what was found where it was asked for.
pub fn write(survey: &Survey, json: Option<&PathBuf>, md: Option<&PathBuf>) -> Result<(), Failure> {
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(survey).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    md.map_or(Ok(()), |path| files::write(path, report::markdown(survey).as_bytes()))
}

fn children() -> Result<Processes, Failure> {
    Ok(Processes { pellucid: std::env::current_exe().map_err(|error| Failure::internal(error.to_string()))? })
}

fn start() -> Result<(), Failure> {
    match startup(STARTUPS, &mut children()?) {
        Ok(seconds) => {
            let (low, high) = (stats::quantile(&seconds, 0.0), stats::quantile(&seconds, 1.0));
            print(&format!(
                "{STARTUPS} empty processes\nAverage: {:.3}s\nMin: {low:.3}s\nMax: {high:.3}s\nVariance: {:.3}s\n",
                stats::mean(&seconds),
                high - low
            ))
        }
        Err(why) => {
            say(&format!("invalid: {why}"));
            end(5, true)
        }
    }
}
