//! `pellucid inspect`: what is this, can it run?

use super::{print, print_json};
use crate::args::InspectArgs;
use crate::failure::Failure;

pub fn run(args: InspectArgs) -> Result<(), Failure> {
    let report = pellucid_models::inspect::inspect(&args.path)?;
    if args.json { print_json(&report) } else { print(&report.card()) }
}
