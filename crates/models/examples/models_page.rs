//! Writes docs/model-types.md from a run of every golden case. With `--check` it compares instead.
//!
//! `cargo xtask check` and `cargo xtask check --fix` call it.

use golden::models_page::{measure, path, problems, renewed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (page, rows) = (std::fs::read_to_string(path()).unwrap_or_default(), measure());
    if std::env::args().any(|argument| argument == "--check") {
        let problems = problems(&page, &rows);
        return if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) };
    }
    Ok(std::fs::write(path(), renewed(&page, &rows))?)
}
