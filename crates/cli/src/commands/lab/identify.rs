//! `pellucid lab identify`: latency and correctness of model inspection.

use super::{exit_with, failure, print, say, worker_binary};
use crate::args::{EVERY_CATEGORY, LabIdentifyArgs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use crate::progress::progress_bar;
use pellucid_lab::executor::run_process;
pub use pellucid_lab::identify::TITLE;
use pellucid_lab::identify::result::{self, IdentifyResult, IdentifySettings};
use pellucid_lab::identify::{Category, NAME, OLD_NAME, compare, find_model, report};
use pellucid_lab::lab_worker::Task;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Current and former name of the suite.
pub const NAMES: [&str; 2] = [NAME, OLD_NAME];
/// Time limit of the worker.
const LIMIT: Duration = Duration::from_secs(3600);

pub fn run(args: LabIdentifyArgs) -> Result<(), Failure> {
    if args.schema {
        return print(result::SCHEMA_TEXT);
    }
    [&args.output, &args.md].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    // Read first, so that an unreadable baseline fails before the measurement.
    let before = args.baseline.as_deref().map(result::read).transpose().map_err(failure)?;
    let settings =
        IdentifySettings::new(args.iterations, args.warmup, |name| std::env::var(name).ok()).map_err(failure)?;
    let memory_profiling = args.all || args.memory_profiling;
    let mut found =
        measure(&IdentifySettings { memory_profiling, category: Category::from_name(&args.category), ..settings })?;
    if let Some(before) = &before {
        // Written first, because the comparison may be refused.
        write(&found, args.output.as_ref(), None)?;
        let hint = "measure a baseline with this build on this machine: pellucid lab identify --output FILE";
        let compared = compare::compare(before, &found).map_err(|error| Failure::usage(error.to_string(), hint))?;
        found.comparison = Some(compared);
    }
    write(&found, args.output.as_ref(), args.md.as_ref())?;
    if args.md.is_none() {
        print(&report::markdown(&found))?;
    }
    exit_with(found.exit_code(), true)
}

/// The arguments of `lab run identify`.
pub fn as_suite(options: &SuiteOptions) -> LabIdentifyArgs {
    LabIdentifyArgs {
        all: false,
        category: EVERY_CATEGORY.into(),
        iterations: None,
        warmup: None,
        memory_profiling: options.allocations,
        output: options.outputs.out.clone(),
        baseline: options.baseline.as_ref().map(PathBuf::from),
        md: options.outputs.markdown.clone(),
        schema: false,
    }
}

/// Measures in a worker, with a spinner on stderr.
pub fn measure(settings: &IdentifySettings) -> Result<IdentifyResult, Failure> {
    if let Some(model) = &settings.model {
        find_model(model).map_err(failure)?;
    }
    let mut command = Task::Identify.command(&worker_binary::worker_path()?);
    let spinner = std::io::stderr().is_terminal().then(|| progress_bar(0, "identify {elapsed}"));
    spinner.iter().for_each(|spinner| spinner.enable_steady_tick(Duration::from_millis(200)));
    let answered = run_process::<IdentifyResult>(&mut command, settings, LIMIT);
    spinner.iter().for_each(|spinner| spinner.finish_and_clear());
    let (found, _) = answered.map_err(|(kind, message)| {
        Failure::invalid(
            format!("pellucid-lab-worker {}: {message}", kind.name()),
            "rebuild it: it may come from another build",
        )
    })?;
    for row in found.results.iter().filter(|row| !row.outcome.ok) {
        say(&format!("wrong: {} returned `{}` instead of `{}`", row.name, row.outcome.observed, row.outcome.expected));
    }
    Ok(found)
}

/// Writes the result to the requested files.
pub fn write(found: &IdentifyResult, output: Option<&PathBuf>, md: Option<&PathBuf>) -> Result<(), Failure> {
    if let Some(path) = output {
        let text = serde_json::to_string_pretty(found).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    md.map_or(Ok(()), |path| files::write(path, report::markdown(found).as_bytes()))
}
