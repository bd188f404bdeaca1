//! The commands, one file each: load, call, print.

pub mod analyze;
mod batch;
pub mod eval;
pub mod generate;
pub mod inspect;
pub mod lab;
pub mod lens;
pub mod mcp;
pub mod profile;
pub mod pull;
pub mod run;
pub mod sae;
pub mod serve;
pub mod sites;
pub mod steer;
pub mod store;
mod terminal;
pub mod tokens;

use crate::failure::{Failure, output};
use pellucid_models::LoadedModel;
use pellucid_models::escape::for_terminal;
use std::io::Write;
use terminal::{color_depth, terminal_width};

/// Writes results to stdout.
fn print(text: &str) -> Result<(), Failure> {
    std::io::stdout().write_all(text.as_bytes()).map_err(output)
}

/// Writes one JSON value to stdout.
fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::internal(error.to_string()))?;
    print(&format!("{text}\n"))
}

/// Writes a result of a model as one JSON object, with the autoencoders attached to the model.
fn print_result(loaded: &LoadedModel, result: &impl serde::Serialize) -> Result<(), Failure> {
    let internal = |error: serde_json::Error| Failure::internal(error.to_string());
    let mut object = serde_json::to_value(result).map_err(internal)?;
    let saes = loaded.saes();
    if !saes.is_empty() {
        object["saes"] = serde_json::to_value(saes).map_err(internal)?;
    }
    print_json(&object)
}

/// Prints a message to stderr, without the escape sequences that names of files may contain.
pub fn say(text: &str) {
    // stderr may be closed; a failed write is ignored.
    let _ = writeln!(std::io::stderr(), "{}", for_terminal(text));
}

/// Reports the sites of a pattern that the model does not have.
fn say_passed_over(sites: &[pellucid_engine::Site]) {
    if !sites.is_empty() {
        let names = sites.iter().map(|site| site.to_string()).collect::<Vec<_>>().join(", ");
        say(&format!("skipped (not in this model): {names}"));
    }
}

/// Reports that results are NaN, and where that began.
fn say_non_finite(first: Option<String>) {
    match first {
        Some(first) => say(&format!("warning: some values are NaN or infinite: {first}")),
        None => say("warning: some values are NaN although every activation is finite: look at the plan's values"),
    }
}

/// Lists marks: name, row, position, value and site, one per line.
fn list_marks(marks: &[pellucid_engine::Mark]) -> String {
    let width = marks.iter().map(|mark| mark.name.len()).max().unwrap_or(0);
    let line = |mark: &pellucid_engine::Mark| {
        let pellucid_engine::Mark { name, site, row, position, value, .. } = mark;
        format!("{name:width$}  row {row}  position {position:<5} {value:>10.4}  {site}\n")
    };
    marks.iter().map(line).collect()
}

/// Reports the number of tensors written.
fn say_written(path: &std::path::Path, results: &crate::files::Results) {
    let count = results.tensors().len();
    say(&format!("wrote {count} {} to {}", if count == 1 { "tensor" } else { "tensors" }, path.display()));
}
