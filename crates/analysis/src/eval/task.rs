//! Tasks, and their files: JSONL, plain text, and the task files of lm-eval.

use super::fewshot::{DELIMITER, Fewshot, Sampler};
use super::lm_eval;
use super::python_random::PythonRandom;
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
    /// Number of examples in the prompt of each item.
    pub num_fewshot: usize,
}

/// How a task is read.
#[derive(Clone, Debug, Default)]
pub struct TaskOptions {
    /// Maximum number of items.
    pub limit: Option<usize>,
    /// Examples in the prompt.
    pub fewshot: Fewshot,
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
    /// else is text.
    pub fn read(path: &Path, options: &TaskOptions) -> Result<Task> {
        let name = path.file_stem().map_or_else(|| "task".into(), |stem| stem.to_string_lossy().into_owned());
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("yaml" | "yml") => lm_eval::read(path, options)?,
            Some("jsonl") => Task::from_documents(name, &path.display().to_string(), documents(path)?, options)?,
            _ => {
                let items = read_texts(path)?.into_iter().map(Item::Text).collect();
                Task { name, kind: TaskKind::Text, items, num_fewshot: 0 }.with_examples(options)?
            }
        }
        .checked(&path.display().to_string(), options)
    }

    /// Makes a task of items in the form of JSONL lines, numbered for messages; `origin` is their
    /// file or another name for messages.
    pub fn from_documents(
        name: String,
        origin: &str,
        documents: Vec<(usize, Map<String, Value>)>,
        options: &TaskOptions,
    ) -> Result<Task> {
        let (kind, items) = read_items(origin, documents)?;
        Task { name, kind, items, num_fewshot: 0 }.with_examples(options)?.checked(origin, options)
    }

    /// Puts examples before the prompt of each item: from a file of examples, or the other items.
    fn with_examples(mut self, options: &TaskOptions) -> Result<Task> {
        let Fewshot { count, file, seed } = &options.fewshot;
        let Some(count) = count.filter(|&count| count > 0) else { return Ok(self) };
        let fail = |problem: String| Error::usage(problem, "give fewer examples, or a file with more of them");
        if !matches!(self.kind, TaskKind::Choices | TaskKind::Target) {
            let problem = format!("{}: `num_fewshot` is {count}, but its items have no prompt", self.name);
            return Err(Error::usage(problem, "examples are put before the `prompt` of choices or targets"));
        }
        let pool = match file {
            None => self.items.clone(),
            Some(file) => {
                let (kind, items) = read_items(&file.display().to_string(), documents(file)?)?;
                if kind != self.kind {
                    return Err(fail(format!("{}: another kind of item than the task's", file.display())));
                }
                items
            }
        };
        let mut sampler = Sampler::Random(Box::new(PythonRandom::new(*seed)));
        for item in self.items.iter_mut().take(options.limit.unwrap_or(usize::MAX)) {
            let own = file.is_none().then(|| item.clone());
            let chosen = sampler.choose(&pool, count, own.as_ref());
            let chosen = chosen.map_err(|problem| fail(format!("{}: {problem}", self.name)))?;
            let examples: String = chosen.into_iter().map(Item::as_example).collect();
            if let Item::Choices { context, .. } | Item::Target { context, .. } = item {
                context.insert_str(0, &examples);
            }
        }
        self.num_fewshot = count;
        Ok(self)
    }

    /// Refuses an empty task, and applies the limit.
    fn checked(mut self, origin: &str, options: &TaskOptions) -> Result<Task> {
        if self.items.is_empty() {
            return Err(Error::usage(format!("{origin} has no item"), "give a file with items"));
        }
        self.items.truncate(options.limit.unwrap_or(usize::MAX));
        Ok(self)
    }
}

impl Item {
    /// The item with its answer, as it stands in the prompts of others.
    fn as_example(&self) -> String {
        match self {
            Item::Choices { context, choices, answer } => format!("{context}{}{DELIMITER}", choices[*answer].text),
            Item::Target { context, target } => format!("{context}{target}{DELIMITER}"),
            Item::Text(text) => format!("{text}{DELIMITER}"),
        }
    }
}

fn read_items(origin: &str, documents: Vec<(usize, Map<String, Value>)>) -> Result<(TaskKind, Vec<Item>)> {
    let (mut kind, mut items) = (None, Vec::new());
    for (number, doc) in documents {
        let at = |problem: String| {
            Error::usage(
                format!("{origin}, line {number}: {problem}"),
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
    Ok((kind.unwrap_or(TaskKind::Text), items))
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
                // serde_json counts lines within this one.
                Err(error) => Err(error.to_string().replace(" at line 1 column", ", column")),
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
