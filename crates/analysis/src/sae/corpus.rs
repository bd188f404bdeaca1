//! Texts of a corpus file.

use pellucid_models::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Reads the texts of a file: one JSON value per line (`"text"` or `{"text": …}`) if its name ends
/// in `.jsonl`, else paragraphs separated by empty lines.
pub fn read_texts(path: &Path) -> Result<Vec<String>> {
    let content = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("{}: {error}", path.display()), "give a text or JSONL file"))?;
    let texts = if path.extension().is_some_and(|extension| extension == "jsonl") {
        let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(index, line)| text_of(path, index, line)).collect::<Result<Vec<String>>>()?
    } else {
        let mut texts = vec![String::new()];
        for line in content.lines() {
            match texts.last_mut() {
                Some(last) if !line.trim().is_empty() => {
                    if !last.is_empty() {
                        last.push('\n');
                    }
                    last.push_str(line);
                }
                _ => texts.push(String::new()),
            }
        }
        texts
    };
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.trim().is_empty()).collect();
    if texts.is_empty() {
        return Err(Error::usage(
            format!("{} has no text", path.display()),
            "give paragraphs separated by empty lines, or JSONL with a `text` in each line",
        ));
    }
    Ok(texts)
}

fn text_of(path: &Path, index: usize, line: &str) -> Result<String> {
    let value = serde_json::from_str::<Value>(line).ok();
    let text = value.as_ref().and_then(|value| value.as_str().or_else(|| value.get("text")?.as_str()));
    text.map(str::to_string).ok_or_else(|| {
        Error::usage(
            format!("{}, line {}: no text", path.display(), index + 1),
            "a line is a JSON string or an object with `text`",
        )
    })
}
