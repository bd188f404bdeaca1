//! The commands, one file each: load, call, print.

pub mod generate;
pub mod inspect;
pub mod lab;
pub mod lens;
pub mod profile;
pub mod pull;
pub mod run;
pub mod sites;

use crate::failure::{Failure, output};
use std::io::Write;

/// Writes results to stdout.
fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout().write_all(text.as_bytes()).map_err(output)
}

/// Writes one JSON value to stdout.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::internal(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Says something about the results, on stderr.
pub fn say(text: &str) {
    // Where stderr is closed nobody is listening.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says which sites a pattern passed over.
fn say_passed_over(sites: &[pellucid_engine::Site]) {
    if !sites.is_empty() {
        let names = sites.iter().map(|site| site.to_string()).collect::<Vec<_>>().join(", ");
        say(&format!("passed over (not in this model): {names}"));
    }
}

/// Says what was written where.
fn say_written(path: &std::path::Path, results: &crate::files::Results) {
    let count = results.named().len();
    say(&format!("wrote {count} {} to {}", if count == 1 { "tensor" } else { "tensors" }, path.display()));
}
