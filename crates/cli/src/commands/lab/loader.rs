//! `pellucid lab loader`: how fast the loader answers, and whether it answers rightly.

use super::{end, failure, print, say};
use crate::args::{EVERY_CATEGORY, LabLoaderArgs, SuiteOptions};
use crate::failure::Failure;
use crate::files;
use crate::progress::bar_of;
use pellucid_lab::loader::settings::Settings;
use pellucid_lab::loader::{Category, against, report, result};
use std::io::IsTerminal;
use std::path::PathBuf;

pub fn run(args: LabLoaderArgs) -> Result<(), Failure> {
    if args.schema {
        return print(result::SCHEMA_TEXT);
    }
    [&args.output, &args.md].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    // A baseline that cannot be read should not cost a run.
    let before = args.baseline.as_deref().map(result::read).transpose().map_err(failure)?;
    let typed = Settings::new(args.iterations, args.warmup, |name| std::env::var(name).ok()).map_err(failure)?;
    let settings = Settings {
        memory_profiling: args.all || args.memory_profiling,
        category: Category::from_name(&args.category),
        ..typed
    };
    let mut found = measured(&settings)?;
    if let Some(before) = &before {
        // What was measured is worth keeping, whatever it can be compared with.
        write(&found, args.output.as_ref(), None)?;
        found.comparison = Some(against::compare(before, &found).map_err(incomparable)?);
    }
    write(&found, args.output.as_ref(), args.md.as_ref())?;
    if args.md.is_none() {
        print(&report::markdown(&found))?;
    }
    end(found.exit_code(), true)
}

fn incomparable(error: pellucid_lab::Error) -> Failure {
    Failure::usage(
        error.to_string(),
        "measure a baseline with this build on this machine: pellucid lab loader --output FILE",
    )
}

/// The arguments of `lab run loader`, in this suite's own words.
pub fn as_suite(options: &SuiteOptions) -> LabLoaderArgs {
    LabLoaderArgs {
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

/// Measures, with a bar on stderr.
pub fn measured(settings: &Settings) -> Result<result::Run, Failure> {
    let bar = std::io::stderr().is_terminal().then(|| bar_of(0, "loader {elapsed}  {msg}"));
    let found = result::run(settings, &mut |name| {
        if let Some(bar) = &bar {
            bar.set_message(name.to_string());
            bar.tick();
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let found = found.map_err(failure)?;
    for row in found.results.iter().filter(|row| !row.outcome.ok) {
        say(&format!("wrong: {} says `{}` instead of `{}`", row.name, row.outcome.observed, row.outcome.expected));
    }
    Ok(found)
}

/// Writes what was found where it was asked for.
pub fn write(found: &result::Run, output: Option<&PathBuf>, md: Option<&PathBuf>) -> Result<(), Failure> {
    if let Some(path) = output {
        let text = serde_json::to_string_pretty(found).map_err(|error| Failure::internal(error.to_string()))?;
        files::write(path, (text + "\n").as_bytes())?;
    }
    md.map_or(Ok(()), |path| files::write(path, report::markdown(found).as_bytes()))
}
