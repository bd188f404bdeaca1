//! Writes the generated part of docs/models.md: runs every golden case and says what came of it.

use golden::models_page::{bound, measure, path, render, replaced};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = std::fs::read_to_string(path())?;
    let part = render(&measure(), |row| row.error.map_or_else(|| "not measured".into(), bound));
    let new = replaced(&page, &part).ok_or("docs/models.md has lost the two comments around its generated part")?;
    Ok(std::fs::write(path(), new)?)
}
