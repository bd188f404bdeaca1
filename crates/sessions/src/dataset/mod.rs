//! The examples of a session: records of a file, prompts from a template, tokens and labels.

mod encode;
mod parquet_rows;
mod read;
mod template;

pub use encode::{Example, encode};
pub use read::{Record, read_records};
pub use template::Template;

use crate::config::{LoadedConfig, SessionConfig};
use pellucid_models::{Error, Result};
use serde_json::Value;

/// An example before it is encoded.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptExample {
    /// File and row of the record.
    pub place: String,
    /// The prompt.
    pub prompt: String,
    /// Texts of the labels.
    pub labels: Vec<String>,
    /// Index of the correct label; `None` without labels.
    pub label: Option<usize>,
}

/// Reads the dataset of a session and builds its prompts, without a model.
pub fn read_dataset(loaded: &LoadedConfig) -> Result<Vec<PromptExample>> {
    let config = &loaded.config.dataset;
    let Some(path) = &config.path else {
        return Err(loaded.error(&["dataset"], "`dataset.path` is missing", "name a JSONL, CSV, Parquet or text file"));
    };
    if !path.exists() {
        let problem = format!("there is no dataset {}", path.display());
        return Err(loaded.error(&["dataset", "path"], problem, "paths are relative to the session file"));
    }
    let records = read_records(path, config.format, config.split.as_deref(), config.split_field.as_deref())?;
    let template = Template::parse(config.prompt.as_deref().unwrap_or("{prompt}")).map_err(|problem| {
        loaded.error(&["dataset", "prompt"], problem, "write fields as {name} and braces as {{ }}")
    })?;
    let records = select(records, &loaded.config);
    if records.is_empty() {
        let problem = format!("{} has no examples after split, offset and limit", path.display());
        return Err(loaded.error(&["dataset"], problem, "check `split`, `offset` and `limit`"));
    }
    // Each record is freed once its prompt is there.
    records.into_iter().map(|record| prompt_of(&record, &template, &loaded.config)).collect()
}

/// Applies `shuffle`, `offset` and `limit`.
fn select(mut records: Vec<Record>, config: &SessionConfig) -> Vec<Record> {
    let dataset = &config.dataset;
    if dataset.shuffle {
        shuffle(&mut records, config.seed.unwrap_or(0));
    }
    records.into_iter().skip(dataset.offset.unwrap_or(0)).take(dataset.limit.unwrap_or(usize::MAX)).collect()
}

/// Fisher-Yates with SplitMix64, so that a seed gives the same order in every version.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    for last in (1..items.len()).rev() {
        items.swap(last, (next() % (last as u64 + 1)) as usize);
    }
}

fn prompt_of(record: &Record, template: &Template, config: &SessionConfig) -> Result<PromptExample> {
    let prompt = template.fill(&record.fields).map_err(|field| missing(record, &field, "the prompt template"))?;
    let dataset = &config.dataset;
    let labels = match &dataset.labels_field {
        Some(field) => texts_of(record, field)?,
        None => dataset.labels.clone(),
    };
    let label = match labels.len() {
        0 => None,
        _ => Some(label_of(record, dataset.label_field.as_deref().unwrap_or("label"), &labels)?),
    };
    Ok(PromptExample { place: record.place.clone(), prompt, labels, label })
}

fn missing(record: &Record, field: &str, user: &str) -> Error {
    let known: Vec<&str> = record.fields.keys().map(String::as_str).collect();
    Error::usage(
        format!("{}: there is no field `{field}`, which {user} needs", record.place),
        format!("its fields are {}; add the field, or change the session", known.join(", ")),
    )
}

fn texts_of(record: &Record, field: &str) -> Result<Vec<String>> {
    let value = record.fields.get(field).ok_or_else(|| missing(record, field, "`labels_field`"))?;
    let texts = value.as_array().and_then(|list| list.iter().map(|text| text.as_str().map(str::to_string)).collect());
    texts.filter(|texts: &Vec<String>| texts.len() >= 2).ok_or_else(|| {
        Error::usage(
            format!("{}: `{field}` is not a list of at least two texts", record.place),
            "give the labels of the example as a list, such as [\" Paris\", \" Rome\"]",
        )
    })
}

fn label_of(record: &Record, field: &str, labels: &[String]) -> Result<usize> {
    let value = record.fields.get(field).ok_or_else(|| missing(record, field, "the label"))?;
    let by_text = |text: &str| labels.iter().position(|label| label == text || label.trim() == text.trim());
    let found = match value {
        Value::Number(number) => number.as_u64().map(|index| index as usize),
        Value::String(text) => by_text(text).or_else(|| text.trim().parse().ok()),
        _ => None,
    };
    found.filter(|&index| index < labels.len()).ok_or_else(|| {
        Error::usage(
            format!("{}: `{field}` is {value}, which is not a label", record.place),
            format!("labels are 0 to {}, or one of {labels:?}", labels.len().saturating_sub(1)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        let order = |seed| {
            let mut items: Vec<usize> = (0..20).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn labels_are_indices_or_texts() {
        let labels = vec![" Yes".to_string(), " No".to_string()];
        let label = |value: Value| {
            let fields = serde_json::Map::from_iter([("label".to_string(), value)]);
            label_of(&Record { place: "d.jsonl, line 3".into(), fields }, "label", &labels)
        };
        assert_eq!(label(1.into()).expect("an index"), 1);
        assert_eq!(label("No".into()).expect("a text"), 1);
        assert_eq!(label("0".into()).expect("an index in a CSV"), 0);
        let error = label(2.into()).unwrap_err().to_string();
        assert!(error.starts_with("d.jsonl, line 3: `label` is 2"), "{error}");
    }
}
