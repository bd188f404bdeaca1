//! `pellucid inspect`: describes a model directory or file and whether it can run.

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::hints;
use pellucid_models::{builtin, inspect, inspect_as, pull};

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    let Some(path) = args.path.filter(|_| !args.schema) else { return print_json(&inspect::schema()) };
    // The name of a pulled model works instead of a path.
    let named = path.to_str().filter(|_| !path.exists()).and_then(|name| pull::resolve(name).ok());
    if named.is_none() && !path.exists() {
        let hint = match path.to_str() {
            Some(builtin::NAME) => "the built-in model is part of the program; `pellucid sites` describes it",
            _ => "give a directory, a file, or the name of a pulled model (`pellucid pull` lists them)",
        };
        return Err(Failure::usage(
            format!("{}: there is no such file, directory or pulled model", path.display()),
            hint,
        ));
    }
    let path = named.unwrap_or(path);
    let mut report = inspect_as(&path, args.assume.assume.as_deref())?;
    report.word_remedies(&hints::word);
    if args.json {
        print_json(&report)
    } else {
        let explanation = if args.explain { report.explanation() } else { String::new() };
        print(&format!("{}{explanation}", report.card_with(&hints::word)))
    }
}
