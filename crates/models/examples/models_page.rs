//! Writes the generated part of docs/models.md: runs every golden case and says what came of it.

#[allow(dead_code)] // the tests use more of these modules
#[path = "../tests/golden/mod.rs"]
mod golden;
#[allow(dead_code)]
#[path = "../tests/models_page/mod.rs"]
mod models_page;

use models_page::{bound, measure, path, render, replaced};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let page = std::fs::read_to_string(path())?;
    let part = render(&measure(), |row| row.error.map_or_else(|| "not measured".into(), bound));
    let new = replaced(&page, &part).ok_or("docs/models.md has lost the two comments around its generated part")?;
    Ok(std::fs::write(path(), new)?)
}
