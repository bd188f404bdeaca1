//! `pellucid inspect`: what is this, can it run?

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;
use pellucid_models::{inspect, inspect_as, pull};

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    let Some(path) = args.path.filter(|_| !args.schema) else { return print_json(&inspect::schema()) };
    // A pulled model may be named instead of its path.
    let named = path.to_str().filter(|_| !path.exists()).and_then(|name| pull::resolve(name).ok());
    let report = inspect_as(&named.unwrap_or(path), args.assume.assume.as_deref())?;
    match (args.json, args.explain) {
        (true, _) => print_json(&report),
        (false, true) => print(&format!("{}{}", report.card(), report.explanation())),
        (false, false) => print(&report.card()),
    }
}
