//! Task files of lm-eval (YAML) with local data. A setting that would change the result and is not
//! supported is an error.

use super::fewshot::{DELIMITER, Sampler};
use super::python_random::PythonRandom;
use super::task::{Choice, Item, Task, TaskKind, TaskOptions, documents};
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
    training_split: Option<String>,
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
    num_fewshot: Option<usize>,
    #[serde(default)]
    fewshot_split: Option<String>,
    #[serde(default)]
    fewshot_delimiter: Option<String>,
    #[serde(default)]
    fewshot_config: FewshotConfig,
    // Not used: they describe the task, or name what is reported.
    #[serde(default, rename = "tag")]
    _tag: Value,
    #[serde(default, rename = "group")]
    _group: Value,
    #[serde(default, rename = "dataset_name")]
    _dataset_name: Value,
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

/// `fewshot_config`: settings of the examples that differ from those of the items.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FewshotConfig {
    #[serde(default)]
    sampler: SamplerName,
    #[serde(default)]
    split: Option<String>,
    #[serde(default)]
    samples: Option<Vec<Map<String, Value>>>,
    #[serde(default)]
    fewshot_delimiter: Option<String>,
    #[serde(default)]
    target_delimiter: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SamplerName {
    #[default]
    Default,
    FirstN,
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

/// The error for a task file with a problem.
fn refuse(path: &Path, problem: &str) -> Error {
    Error::usage(
        format!("{}: {problem}", path.display()),
        "docs/eval.md lists the settings of lm-eval's task files that are supported",
    )
}

/// Reads a task file and its data.
pub(super) fn read(path: &Path, options: &TaskOptions) -> Result<Task> {
    let fail = |problem: String| refuse(path, &problem);
    let content = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("{}: {error}", path.display()), "check the path of the task"))?;
    let file: TaskFile = serde_saphyr::from_str(&content).map_err(|error| {
        // The first line says what and where; the others quote the file.
        fail(error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_string())
    })?;
    let templates = Templates::new();
    let docs = read_split(&file, path, file.evaluated_split())?;
    let count = options.fewshot.count.or(file.num_fewshot).unwrap_or(0);
    let mut examples = match count {
        0 => None,
        _ => Some(Examples::read(&file, path, count, options)?),
    };
    let mut items = Vec::new();
    for (place, doc) in docs.iter().take(options.limit.unwrap_or(usize::MAX)) {
        let before = match &mut examples {
            Some(examples) => examples.before(&file, &templates, doc).map_err(fail)?,
            None => String::new(),
        };
        let item = file.item(&templates, doc, &before);
        items.push(item.map_err(|problem| fail(format!("{place}: {problem}")))?);
    }
    let kind = match file.output_type {
        OutputType::MultipleChoice => TaskKind::Choices,
        OutputType::Loglikelihood => TaskKind::Target,
        OutputType::LoglikelihoodRolling => TaskKind::Text,
    };
    Ok(Task { name: file.task, kind, items, num_fewshot: count })
}

/// Documents with their places, for messages.
type Documents = Vec<(String, Map<String, Value>)>;

/// Reads the documents of a split.
fn read_split(file: &TaskFile, path: &Path, split: Option<&str>) -> Result<Documents> {
    let mut all = Vec::new();
    for data in data_files(file, path, split).map_err(|problem| refuse(path, &problem))? {
        let place = |number: usize| format!("{}, line {number}", data.display());
        all.extend(documents(&data)?.into_iter().map(|(number, doc)| (place(number), doc)));
    }
    Ok(all)
}

/// The files of a split: beside the task file, or in the working directory.
fn data_files(file: &TaskFile, path: &Path, split: Option<&str>) -> std::result::Result<Vec<PathBuf>, String> {
    if file.dataset_path.as_deref() != Some("json") {
        return Err("`dataset_path` is not `json`: only local JSONL files are read".into());
    }
    let names: Vec<&String> = match file.dataset_kwargs.as_ref().map(|options| &options.data_files) {
        None => return Err("there is no `dataset_kwargs: data_files`".into()),
        Some(DataFiles::One(name)) => vec![name],
        Some(DataFiles::BySplit(splits)) => {
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

/// The examples of a task, and the choice among them.
struct Examples {
    pool: Vec<Map<String, Value>>,
    /// Whether the evaluated items are in the pool, as lm-eval decides it: by the names of splits.
    holds_items: bool,
    count: usize,
    sampler: Sampler,
}

impl Examples {
    /// Reads the examples: a given file, `samples`, or a split: `fewshot_split`, else training,
    /// validation or test.
    fn read(file: &TaskFile, path: &Path, count: usize, options: &TaskOptions) -> Result<Examples> {
        if file.output_type == OutputType::LoglikelihoodRolling {
            return Err(refuse(path, &format!("`num_fewshot` is {count}, but whole texts have no prompt")));
        }
        let config = &file.fewshot_config;
        let named = config.split.as_deref().or(file.fewshot_split.as_deref());
        let others = [&file.training_split, &file.validation_split, &file.test_split];
        let pool: Vec<Map<String, Value>> = match (&options.fewshot.file, &config.samples) {
            (Some(own), _) => documents(own)?.into_iter().map(|(_, doc)| doc).collect(),
            (None, Some(samples)) if named.is_none() => samples.clone(),
            _ => {
                let split = named.or_else(|| others.into_iter().find_map(|split| split.as_deref()));
                read_split(file, path, split)?.into_iter().map(|(_, doc)| doc).collect()
            }
        };
        let sampler = match config.sampler {
            SamplerName::FirstN => Sampler::First,
            SamplerName::Default => Sampler::Random(Box::new(PythonRandom::new(options.fewshot.seed))),
        };
        let holds_items = options.fewshot.file.is_none() && named == file.test_split.as_deref();
        Ok(Examples { pool, holds_items, count, sampler })
    }

    /// The text of the examples before an item.
    fn before(
        &mut self,
        file: &TaskFile,
        templates: &Templates,
        doc: &Map<String, Value>,
    ) -> std::result::Result<String, String> {
        let config = &file.fewshot_config;
        let target = config.target_delimiter.as_ref().unwrap_or(&file.target_delimiter);
        let end = config.fewshot_delimiter.as_ref().or(file.fewshot_delimiter.as_ref());
        let end = end.map_or(DELIMITER, String::as_str);
        let mut text = String::new();
        for example in self.sampler.choose(&self.pool, self.count, self.holds_items.then_some(doc))? {
            let (question, answer) =
                file.example(templates, example).map_err(|problem| format!("an example: {problem}"))?;
            text += &format!("{question}{target}{answer}{end}");
        }
        Ok(text)
    }
}

impl TaskFile {
    fn evaluated_split(&self) -> Option<&str> {
        self.test_split.as_deref().or(self.validation_split.as_deref())
    }

    /// An item, with the examples before its text.
    fn item(
        &self,
        templates: &Templates,
        doc: &Map<String, Value>,
        examples: &str,
    ) -> std::result::Result<Item, String> {
        let text = |key, value| text(templates, doc, key, value);
        if self.output_type == OutputType::LoglikelihoodRolling {
            return Ok(Item::Text(text("doc_to_target", &self.doc_to_target)?));
        }
        let context = format!("{}{examples}{}", self.description, text("doc_to_text", &self.doc_to_text)?);
        if self.output_type == OutputType::Loglikelihood {
            let target = text("doc_to_target", &self.doc_to_target)?;
            return Ok(Item::Target { context, target: format!("{}{target}", self.target_delimiter) });
        }
        let (choices, answer) = self.choices_of(templates, doc)?;
        let choices = choices.iter().map(|choice| Choice::new(&self.target_delimiter, choice)).collect();
        Ok(Item::Choices { context, choices, answer })
    }

    /// The question and the answer of an example.
    fn example(
        &self,
        templates: &Templates,
        doc: &Map<String, Value>,
    ) -> std::result::Result<(String, String), String> {
        let question = text(templates, doc, "doc_to_text", &self.doc_to_text)?;
        let answer = match self.output_type {
            OutputType::MultipleChoice => {
                let (mut choices, answer) = self.choices_of(templates, doc)?;
                choices.swap_remove(answer)
            }
            _ => text(templates, doc, "doc_to_target", &self.doc_to_target)?,
        };
        Ok((question, answer))
    }

    /// The choices of a document and the index of the right one.
    fn choices_of(
        &self,
        templates: &Templates,
        doc: &Map<String, Value>,
    ) -> std::result::Result<(Vec<String>, usize), String> {
        let choices = self.choices(templates, doc).map_err(|problem| format!("`doc_to_choice`: {problem}"))?;
        let target = match &self.doc_to_target {
            Value::Number(index) => index.to_string(),
            other => text(templates, doc, "doc_to_target", other)?,
        };
        let answer = choices.iter().position(|choice| *choice == target).or_else(|| target.trim().parse().ok());
        let answer = answer
            .filter(|&index| index < choices.len())
            .ok_or_else(|| format!("`doc_to_target`: {target:?} is neither a choice nor the index of one"))?;
        Ok((choices, answer))
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

/// The text of a setting for a document: a field, or a rendered template.
fn text(
    templates: &Templates,
    doc: &Map<String, Value>,
    key: &str,
    value: &Value,
) -> std::result::Result<String, String> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(template) => match doc.get(template) {
            Some(Value::String(field)) => Ok(field.clone()),
            Some(field) => Ok(field.to_string()),
            None => templates.render(template, doc).map_err(|problem| format!("`{key}`: {problem}")),
        },
        other => Err(format!("`{key}`: {other} is neither a field nor a template")),
    }
}
