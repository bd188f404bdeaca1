//! Converts a store to other formats.

use super::dense::{dense_arrays, write_arrays};
use super::{Store, TABLES};
use crate::table::{Column, Table};
use pellucid_models::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Formats of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One CSV file per table.
    Csv,
    /// One JSONL file per table.
    Jsonl,
    /// One Parquet file per table, with all parts joined.
    Parquet,
    /// Dense arrays `[examples, latents]` as one safetensors file.
    Safetensors,
}

/// Exports a store into a directory, which is created; returns the files written.
pub fn export(store: &Store, format: ExportFormat, directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).map_err(fail(directory))?;
    if format == ExportFormat::Safetensors {
        let path = directory.join("arrays.safetensors");
        write_arrays(&path, &dense_arrays(store)?)?;
        return Ok(vec![path]);
    }
    let mut written = Vec::new();
    for name in TABLES.into_iter().filter(|table| !store.column_names(table).is_empty()) {
        let table = store.table(name)?;
        let path = directory.join(match format {
            ExportFormat::Csv => format!("{name}.csv"),
            ExportFormat::Jsonl => format!("{name}.jsonl"),
            _ => format!("{name}.parquet"),
        });
        match format {
            ExportFormat::Csv => write_csv(&path, &table)?,
            ExportFormat::Jsonl => write_jsonl(&path, &table)?,
            _ => super::write_table(&path, &table)?,
        }
        written.push(path);
    }
    Ok(written)
}

fn fail(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| {
        let remedy = "check that the directory may be written and the disk is not full";
        Error::usage(format!("cannot write {}: {error}", path.display()), remedy)
    }
}

fn write_csv(path: &Path, table: &Table) -> Result<()> {
    let fail = |error: csv::Error| fail(path)(std::io::Error::other(error.to_string()));
    let mut writer = csv::Writer::from_path(path).map_err(fail)?;
    writer.write_record(table.columns().map(|(name, _)| name)).map_err(fail)?;
    for row in 0..table.len() {
        writer.write_record(table.columns().map(|(_, column)| column.show(row))).map_err(fail)?;
    }
    writer.flush().map_err(self::fail(path))
}

fn write_jsonl(path: &Path, table: &Table) -> Result<()> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        for row in 0..table.len() {
            let fields = table.columns().map(|(name, column)| (name.to_string(), to_json(column, row)));
            writeln!(file, "{}", Value::Object(fields.collect::<Map<_, _>>()))?;
        }
        file.flush()
    };
    write().map_err(fail(path))
}

fn to_json(column: &Column, row: usize) -> Value {
    match column {
        Column::Int64(values) => json!(values[row]),
        Column::Float32(values) => json!(values[row]),
        Column::OptionalFloat32(values) => json!(values[row]),
        Column::Text(values) => json!(values[row]),
        Column::Int64List(values) => json!(values[row]),
        Column::Float32List(values) => json!(values[row]),
    }
}
