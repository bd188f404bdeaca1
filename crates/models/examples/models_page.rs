//! Writes the generated part of docs/models.md: runs every golden case and says what came of it. With `--check` it compares instead.
//!
//! `cargo xtask check` and `cargo xtask check --fix` call it.

use golden::models_page::{measure, path, problems, renewed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (page, rows) = (std::fs::read_to_string(path())?, measure());
    if std::env::args().any(|argument| argument == "--check") {
        let problems = problems(&page, &rows);
        return if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) };
    }
    let new = renewed(&page, &rows).ok_or("the two comments around the generated part are lost")?;
    Ok(std::fs::write(path(), new)?)
}
