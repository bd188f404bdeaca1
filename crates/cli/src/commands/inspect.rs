//! `pellucid inspect`: what is this, can it run?

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;
use pellucid_models::{inspect_as, pull};

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    // A pulled model may be named instead of its path.
    let named = args.path.to_str().filter(|_| !args.path.exists()).and_then(|name| pull::resolve(name).ok());
    let report = inspect_as(&named.unwrap_or(args.path), args.assume.assume.as_deref())?;
    if args.json { print_json(&report) } else { print(&report.card()) }
}
