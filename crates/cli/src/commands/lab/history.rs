//! `pellucid lab history`: change points in results over time.

use super::{baseline_store, print, print_json, result_named, say};
use crate::args::LabHistoryArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::result::SessionResult;
use pellucid_lab::{baseline, history, report};
use std::path::{Path, PathBuf};

pub fn run(args: LabHistoryArgs) -> Result<(), Failure> {
    files::check(args.html.as_deref())?;
    let names = if args.results.is_empty() { baseline_store()?.names() } else { args.results };
    let mut results = Vec::new();
    for name in &names {
        match Path::new(name).is_dir() {
            true => results.extend(directory(Path::new(name))?),
            false => results.push((name.clone(), result_named(name)?)),
        }
    }
    if results.is_empty() {
        return Err(Failure::usage(
            "there are no results to analyze",
            "save some with `pellucid lab baseline save NAME r.json`, or give a directory of result files",
        ));
    }
    let series = history::series(&results);
    if let Some(path) = &args.html {
        files::write(path, report::history_html(&series).as_bytes())?;
    }
    if args.json { print_json(&series) } else { print(&report::history_text(&series)) }
}

/// Reads the result files of a directory; reports other files as skipped.
fn directory(dir: &Path) -> Result<Vec<(String, SessionResult)>, Failure> {
    let entries = std::fs::read_dir(dir)
        .map_err(|error| Failure::usage(format!("{}: {error}", dir.display()), "give a directory of result files"))?;
    let is_json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_json).collect();
    paths.sort();
    let mut results = Vec::new();
    for path in paths {
        match baseline::read(&path) {
            Ok(result) => {
                let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                results.push((name, result));
            }
            Err(error) => say(&format!("skipped: {error}")),
        }
    }
    Ok(results)
}
