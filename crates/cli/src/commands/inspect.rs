//! `pellucid inspect`: what is this, can it run?

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;
use pellucid_models::{Attempt, LoadOptions, inspect_as, pull, strategies};

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    // A pulled model may be named instead of its path.
    let named = args.path.to_str().filter(|_| !args.path.exists()).and_then(|name| pull::resolve(name).ok());
    let path = named.unwrap_or(args.path);
    let report = inspect_as(&path, args.assume.assume.as_deref())?;
    let options = LoadOptions { assume: args.assume.assume, ..LoadOptions::default() };
    let attempts = args.explain.then(|| strategies(&path, &options));
    if !args.json {
        return print(&format!("{}{}", report.card(), attempts.as_deref().map(explained).unwrap_or_default()));
    }
    let mut value = serde_json::to_value(&report).map_err(|error| Failure::internal(error.to_string()))?;
    if let Some(attempts) = attempts {
        value["strategies"] = serde_json::json!(attempts);
    }
    print_json(&value)
}

/// The ways to load a model, a line each.
fn explained(attempts: &[Attempt]) -> String {
    attempts.iter().fold("\nways to load it, in order:\n".to_owned(), |text, attempt| format!("{text}  {attempt}\n"))
}
