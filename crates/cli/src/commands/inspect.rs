//! `pellucid inspect`: what is this, can it run?

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;
use pellucid_models::{LoadOptions, inspect, inspect_as, pull, strategies};

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    let Some(path) = args.path.filter(|_| !args.schema) else { return print_json(&inspect::schema()) };
    // A pulled model may be named instead of its path.
    let named = path.to_str().filter(|_| !path.exists()).and_then(|name| pull::resolve(name).ok());
    let path = named.unwrap_or(path);
    let mut report = inspect_as(&path, args.assume.assume.as_deref())?;
    if args.explain {
        let options = LoadOptions { assume: args.assume.assume, ..LoadOptions::default() };
        report.strategies = Some(strategies(&path, &options));
    }
    if args.json { print_json(&report) } else { print(&format!("{}{}", report.card(), report.explanation())) }
}
