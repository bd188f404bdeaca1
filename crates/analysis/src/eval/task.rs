//! Tasks, and their files: JSONL, plain text, and the task files of lm-eval.

use super::lm_eval;
use crate::sae::read_texts;
use pellucid_models::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;

/// Items of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// The kind of its items.
    pub kind: TaskKind,
    /// The items.
    pub items: Vec<Item>,
}

/// The kind of likelihood that a task compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// The most likely of several continuations.
    Choices,
    /// Whether the better of two texts is more likely.
    Pairs,
    /// The likelihood of a continuation.
    Target,
    /// The likelihood of a text.
    Text,
}

/// An item of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// Continuations of a context, one of which is right. A pair of texts has an empty context.
    Choices {
        /// The text before the choices.
        context: String,
        /// The continuations.
        choices: Vec<Choice>,
        /// Index of the right one.
        answer: usize,
    },
    /// A continuation of a context.
    Target {
        /// The text before it.
        context: String,
        /// The continuation.
        target: String,
    },
    /// A whole text.
    Text(String),
}

/// A continuation that can be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The scored text, with the delimiter before it.
    pub text: String,
    /// Number of characters without the delimiter, for the normalized accuracy.
    pub characters: usize,
}

impl Choice {
    /// A choice after a delimiter.
    pub fn new(delimiter: &str, text: &str) -> Choice {
        Choice { text: format!("{delimiter}{text}"), characters: text.chars().count() }
    }
}

impl Task {
    /// Reads a task: `.yaml` is a task file of lm-eval, `.jsonl` has one item per line, everything
    /// else is text. At most `limit` items.
    pub fn read(path: &Path, limit: usize) -> Result<Task> {
        let name = path.file_stem().map_or_else(|| "task".into(), |stem| stem.to_string_lossy().into_owned());
        let mut task = match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml" | "yml") => lm_eval::read(path)?,
            Some("jsonl") => read_jsonl(path, name)?,
            _ => {
                let items = read_texts(path)?.into_iter().map(Item::Text).collect();
                Task { name, kind: TaskKind::Text, items }
            }
        };
        if task.items.is_empty() {
            return Err(Error::usage(format!("{} has no item", path.display()), "give a file with items"));
        }
        task.items.truncate(limit);
        Ok(task)
    }
}

fn read_jsonl(path: &Path, name: String) -> Result<Task> {
    let (mut kind, mut items) = (None, Vec::new());
    for (number, doc) in documents(path)? {
        let at = |problem: String| {
            Error::usage(
                format!("{}, line {number}: {problem}", path.display()),
                "a line has `prompt`, `choices` and `answer`; `good` and `bad`; `prompt` and `target`; or `text`",
            )
        };
        let (own, item) = read_item(&doc).map_err(at)?;
        match kind {
            Some(kind) if kind != own => return Err(at("another kind of item than the lines before".into())),
            _ => kind = Some(own),
        }
        items.push(item);
    }
    Ok(Task { name, kind: kind.unwrap_or(TaskKind::Text), items })
}

/// Reads the objects of a JSONL file, with their line numbers.
pub(super) fn documents(path: &Path) -> Result<Vec<(usize, Map<String, Value>)>> {
    let content = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("{}: {error}", path.display()), "check the path of the data"))?;
    let lines = content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            match serde_json::from_str(line) {
                Ok(Value::Object(doc)) => Ok((index + 1, doc)),
                Ok(Value::String(text)) => Ok((index + 1, Map::from_iter([("text".into(), Value::String(text))]))),
                Ok(_) => Err("a line is an object".to_string()),
                Err(error) => Err(error.to_string()),
            }
            .map_err(|problem| {
                Error::usage(
                    format!("{}, line {}: {problem}", path.display(), index + 1),
                    "give one JSON object per line",
                )
            })
        })
        .collect()
}

fn read_item(doc: &Map<String, Value>) -> std::result::Result<(TaskKind, Item), String> {
    let text = |key: &str| doc.get(key).and_then(Value::as_str);
    let need = |key: &str| text(key).map(str::to_string).ok_or_else(|| format!("no text `{key}`"));
    if let Some(choices) = doc.get("choices") {
        let context = need("prompt")?;
        let choices: Option<Vec<&str>> =
            choices.as_array().map(|list| list.iter().map(Value::as_str).collect()).unwrap_or_default();
        let choices = choices.filter(|list| list.len() > 1).ok_or("`choices` is not a list of two or more texts")?;
        let answer = match doc.get("answer") {
            Some(Value::String(answer)) => choices.iter().position(|choice| choice == answer),
            Some(answer) => answer.as_u64().map(|index| index as usize).filter(|&index| index < choices.len()),
            None => None,
        };
        let answer = answer.ok_or("`answer` is neither a choice nor the index of one")?;
        let choices = choices.iter().map(|choice| Choice::new(delimiter(&context, choice), choice)).collect();
        return Ok((TaskKind::Choices, Item::Choices { context, choices, answer }));
    }
    let pair = [("good", "bad"), ("sentence_good", "sentence_bad")];
    if let Some((good, bad)) = pair.into_iter().find(|(good, _)| doc.contains_key(*good)) {
        let choices = vec![Choice::new("", &need(good)?), Choice::new("", &need(bad)?)];
        return Ok((TaskKind::Pairs, Item::Choices { context: String::new(), choices, answer: 0 }));
    }
    if doc.contains_key("target") {
        let (context, target) = (need("prompt")?, need("target")?);
        let target = format!("{}{target}", delimiter(&context, &target));
        return Ok((TaskKind::Target, Item::Target { context, target }));
    }
    Ok((TaskKind::Text, Item::Text(need("text")?)))
}

/// A space between a context and a continuation, unless one of them has it.
fn delimiter(context: &str, continuation: &str) -> &'static str {
    let spaced = context.is_empty() || context.ends_with(char::is_whitespace);
    if spaced || continuation.starts_with(char::is_whitespace) { "" } else { " " }
}
