//! Task files of lm-eval (YAML) with local data. A setting that would change the result and is not
//! supported is an error.

use super::task::{Choice, Item, Task, TaskKind, documents};
use super::template::Templates;
use pellucid_models::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The settings that are used, and those that do not change the result.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskFile {
    task: String,
    output_type: OutputType,
    #[serde(default)]
    dataset_path: Option<String>,
    #[serde(default)]
    dataset_kwargs: Option<DatasetOptions>,
    #[serde(default)]
    validation_split: Option<String>,
    #[serde(default)]
    test_split: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    doc_to_text: Value,
    #[serde(default)]
    doc_to_target: Value,
    #[serde(default)]
    doc_to_choice: Value,
    #[serde(default = "space")]
    target_delimiter: String,
    #[serde(default)]
    num_fewshot: Option<u32>,
    // Not used: they describe the task, or name what is reported.
    #[serde(default, rename = "tag")]
    _tag: Value,
    #[serde(default, rename = "group")]
    _group: Value,
    #[serde(default, rename = "dataset_name")]
    _dataset_name: Value,
    #[serde(default, rename = "training_split")]
    _training_split: Value,
    #[serde(default, rename = "fewshot_split")]
    _fewshot_split: Value,
    #[serde(default, rename = "metric_list")]
    _metric_list: Value,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    #[serde(default, rename = "should_decontaminate")]
    _should_decontaminate: Value,
    #[serde(default, rename = "doc_to_decontamination_query")]
    _doc_to_decontamination_query: Value,
}

fn space() -> String {
    " ".into()
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum OutputType {
    MultipleChoice,
    Loglikelihood,
    LoglikelihoodRolling,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetOptions {
    data_files: DataFiles,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum DataFiles {
    One(String),
    BySplit(std::collections::BTreeMap<String, OneOrMany>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Reads a task file and its data.
pub(super) fn read(path: &Path) -> Result<Task> {
    let fail = |problem: String| {
        Error::usage(
            format!("{}: {problem}", path.display()),
            "docs/eval.md lists the settings of lm-eval's task files that are supported",
        )
    };
    let content = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("{}: {error}", path.display()), "check the path of the task"))?;
    let file: TaskFile = serde_saphyr::from_str(&content).map_err(|error| {
        // The first line says what and where; the others quote the file.
        fail(error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_string())
    })?;
    if file.num_fewshot.is_some_and(|count| count > 0) {
        return Err(fail("`num_fewshot` is not 0: examples in the prompt are not supported".into()));
    }
    let templates = Templates::new();
    let mut items = Vec::new();
    for data in data_files(&file, path).map_err(fail)? {
        for (number, doc) in documents(&data)? {
            let item = file.item(&templates, &doc);
            items.push(item.map_err(|problem| fail(format!("{}, line {number}: {problem}", data.display())))?);
        }
    }
    let kind = match file.output_type {
        OutputType::MultipleChoice => TaskKind::Choices,
        OutputType::Loglikelihood => TaskKind::Target,
        OutputType::LoglikelihoodRolling => TaskKind::Text,
    };
    Ok(Task { name: file.task, kind, items })
}

/// The files of the evaluated split: beside the task file, or in the working directory.
fn data_files(file: &TaskFile, path: &Path) -> std::result::Result<Vec<PathBuf>, String> {
    if file.dataset_path.as_deref() != Some("json") {
        return Err("`dataset_path` is not `json`: only local JSONL files are read".into());
    }
    let names: Vec<&String> = match file.dataset_kwargs.as_ref().map(|options| &options.data_files) {
        None => return Err("there is no `dataset_kwargs: data_files`".into()),
        Some(DataFiles::One(name)) => vec![name],
        Some(DataFiles::BySplit(splits)) => {
            let split = file.test_split.as_ref().or(file.validation_split.as_ref());
            let split = split.ok_or("there is neither a `test_split` nor a `validation_split`")?;
            match splits.get(split) {
                None => return Err(format!("`data_files` has no split `{split}`")),
                Some(OneOrMany::One(name)) => vec![name],
                Some(OneOrMany::Many(names)) => names.iter().collect(),
            }
        }
    };
    let beside = path.parent().unwrap_or(Path::new(""));
    let find = |name: &&String| Some(beside.join(name)).filter(|found| found.is_file()).unwrap_or_else(|| name.into());
    Ok(names.iter().map(find).collect())
}

impl TaskFile {
    fn item(&self, templates: &Templates, doc: &Map<String, Value>) -> std::result::Result<Item, String> {
        let named = |key: &'static str| move |problem: String| format!("`{key}`: {problem}");
        let text = |value: &Value| match value {
            Value::Null => Ok(String::new()),
            Value::String(template) => match doc.get(template) {
                Some(Value::String(field)) => Ok(field.clone()),
                Some(field) => Ok(field.to_string()),
                None => templates.render(template, doc),
            },
            other => Err(format!("{other} is neither a field nor a template")),
        };
        if self.output_type == OutputType::LoglikelihoodRolling {
            return Ok(Item::Text(text(&self.doc_to_target).map_err(named("doc_to_target"))?));
        }
        let context = format!("{}{}", self.description, text(&self.doc_to_text).map_err(named("doc_to_text"))?);
        if self.output_type == OutputType::Loglikelihood {
            let target = text(&self.doc_to_target).map_err(named("doc_to_target"))?;
            return Ok(Item::Target { context, target: format!("{}{target}", self.target_delimiter) });
        }
        let choices = self.choices(templates, doc).map_err(named("doc_to_choice"))?;
        let target = match &self.doc_to_target {
            Value::Number(index) => index.to_string(),
            other => text(other).map_err(named("doc_to_target"))?,
        };
        let answer = choices.iter().position(|choice| *choice == target).or_else(|| target.trim().parse().ok());
        let answer = answer
            .filter(|&index| index < choices.len())
            .ok_or_else(|| format!("`doc_to_target`: {target:?} is neither a choice nor the index of one"))?;
        let choices = choices.iter().map(|choice| Choice::new(&self.target_delimiter, choice)).collect();
        Ok(Item::Choices { context, choices, answer })
    }

    fn choices(&self, templates: &Templates, doc: &Map<String, Value>) -> std::result::Result<Vec<String>, String> {
        let list = match &self.doc_to_choice {
            Value::String(template) => match doc.get(template) {
                Some(field) => field.clone(),
                None => templates.value(template, doc)?,
            },
            other => other.clone(),
        };
        let list = list.as_array().ok_or("it is not a list")?;
        let choice = |value: &Value| value.as_str().map(str::to_string).ok_or_else(|| format!("{value} is not a text"));
        list.iter().map(choice).collect()
    }
}
