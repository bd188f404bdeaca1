//! Records of JSONL, CSV, Parquet and text files.

use super::parquet_rows::read_parquet;
use crate::config::DataFormat;
use pellucid_models::{Error, Result};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A record of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// File and line or row, for errors.
    pub place: String,
    /// The fields, in the file's order.
    pub fields: Map<String, Value>,
}

/// Reads the records of a file, or of the file of a split in a directory. Of a single file, a split
/// selects the records whose `split_field` holds it.
pub fn read_records(
    path: &Path,
    format: Option<DataFormat>,
    split: Option<&str>,
    split_field: Option<&str>,
) -> Result<Vec<Record>> {
    if path.is_dir() {
        return read_file(&file_of_split(path, split)?, format);
    }
    let records = read_file(path, format)?;
    let Some(split) = split else { return Ok(records) };
    let field = split_field.unwrap_or("split");
    let mut chosen = Vec::new();
    for record in records {
        match record.fields.get(field) {
            Some(Value::String(own)) if own == split => chosen.push(record),
            Some(_) => {}
            None => {
                return Err(Error::usage(
                    format!("{}: there is no field `{field}` to find the split {split:?}", record.place),
                    "name the field in `split_field`, give a directory with a file per split, or leave out `split`",
                ));
            }
        }
    }
    Ok(chosen)
}

/// Finds `validation.jsonl` or `validation-00000-of-00001.parquet`.
fn file_of_split(directory: &Path, split: Option<&str>) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory).map_err(Error::io(directory))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && format_of(path).is_some())
        .collect();
    files.sort();
    let name = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let of_split =
        |path: &&PathBuf| split.is_none_or(|split| name(path) == split || name(path).starts_with(&format!("{split}-")));
    let found: Vec<&PathBuf> = files.iter().filter(of_split).collect();
    match &found[..] {
        [one] => Ok((*one).clone()),
        _ => {
            let names: Vec<String> = files.iter().map(|path| name(path)).collect();
            let which = split.map_or("one dataset".into(), |split| format!("one file of the split {split:?}"));
            Err(Error::usage(
                format!("{} does not hold exactly {which}", directory.display()),
                if names.is_empty() {
                    "give a JSONL, CSV, Parquet or text file".to_string()
                } else {
                    format!("set `split` to one of {}, or give a file", names.join(", "))
                },
            ))
        }
    }
}

fn format_of(path: &Path) -> Option<DataFormat> {
    match path.extension()?.to_str()? {
        "jsonl" | "ndjson" => Some(DataFormat::Jsonl),
        "csv" => Some(DataFormat::Csv),
        "tsv" => Some(DataFormat::Tsv),
        "parquet" => Some(DataFormat::Parquet),
        "txt" | "text" => Some(DataFormat::Text),
        _ => None,
    }
}

fn read_file(path: &Path, format: Option<DataFormat>) -> Result<Vec<Record>> {
    let format = format.or_else(|| format_of(path)).ok_or_else(|| {
        Error::usage(
            format!("{}: the format of the dataset is not known from its name", path.display()),
            "set `dataset.format` to jsonl, csv, tsv, parquet or text",
        )
    })?;
    match format {
        DataFormat::Jsonl => read_jsonl(path),
        DataFormat::Csv => read_csv(path, b','),
        DataFormat::Tsv => read_csv(path, b'\t'),
        DataFormat::Parquet => read_parquet(path),
        DataFormat::Text => {
            let lines = read_text(path)?;
            let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            Ok(lines.map(|(index, line)| text_record(path, index, line.into())).collect())
        }
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::invalid(path, "it is not UTF-8 text", "convert the file to UTF-8, or set `dataset.format`"))
}

fn place(path: &Path, index: usize) -> String {
    format!("{}, line {}", path.display(), index + 1)
}

/// A plain text is the field `text`, and the prompt if no template says otherwise.
fn text_record(path: &Path, index: usize, text: Value) -> Record {
    let fields = Map::from_iter([("text".to_string(), text.clone()), ("prompt".to_string(), text)]);
    Record { place: place(path, index), fields }
}

fn read_jsonl(path: &Path) -> Result<Vec<Record>> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| match serde_json::from_str(line) {
            Ok(Value::Object(fields)) => Ok(Record { place: place(path, index), fields }),
            Ok(text @ Value::String(_)) => Ok(text_record(path, index, text)),
            Ok(_) => Err(Error::usage(
                format!("{}: this is neither an object nor a string", place(path, index)),
                "each line is a JSON object such as {\"prompt\": \"…\", \"label\": 0}",
            )),
            Err(error) => Err(Error::usage(
                // serde_json counts lines within this one.
                format!("{}: {}", place(path, index), error.to_string().replace(" at line 1 column", ", column")),
                "each line is one JSON value; check quotes and commas",
            )),
        })
        .collect()
}

fn read_csv(path: &Path, delimiter: u8) -> Result<Vec<Record>> {
    let fail = |error: csv::Error| {
        let at = error.position().map(|at| format!(", line {}", at.line())).unwrap_or_default();
        Error::usage(format!("{}{at}: {error}", path.display()), "check quotes and the number of columns")
    };
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).from_path(path).map_err(fail)?;
    let header = reader.headers().map_err(fail)?.clone();
    let records = reader.records().map(|record| {
        let record = record.map_err(fail)?;
        let line = record.position().map_or(0, |at| at.line() as usize);
        let fields = header.iter().zip(&record).map(|(name, value)| (name.to_string(), Value::String(value.into())));
        Ok(Record { place: place(path, line.saturating_sub(1)), fields: fields.collect() })
    });
    records.collect()
}
