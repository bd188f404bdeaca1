//! Converts a store to other formats.

use super::dense::{dense_arrays, write_arrays};
use super::{Store, TABLES, write_row_groups};
use crate::table::{Column, Table};
use pellucid_models::{Result, output};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Formats of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// One CSV file per table.
    Csv,
    /// One JSONL file per table.
    Jsonl,
    /// One Parquet file per table, with a row group for each part.
    Parquet,
    /// Dense arrays `[examples, latents]` as one safetensors file.
    Safetensors,
}

/// Exports a store into a directory, which is created; returns the files written.
pub fn export(store: &Store, format: ExportFormat, directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).map_err(|error| output::error(directory, &error))?;
    if format == ExportFormat::Safetensors {
        let path = directory.join("arrays.safetensors");
        write_arrays(&path, &dense_arrays(store)?)?;
        return Ok(vec![path]);
    }
    let mut written = Vec::new();
    for name in TABLES.into_iter().filter(|table| !store.column_names(table).is_empty()) {
        let path = directory.join(match format {
            ExportFormat::Csv => format!("{name}.csv"),
            ExportFormat::Jsonl => format!("{name}.jsonl"),
            _ => format!("{name}.parquet"),
        });
        // One part at a time is in memory.
        let mut parts = (0..store.parts()).map(|part| store.part_table(name, part));
        match format {
            ExportFormat::Parquet => write_row_groups(&path, &store.column_types(name), &mut || parts.next())?,
            _ => {
                let fill = |file: &mut (dyn Write + Send)| match format {
                    ExportFormat::Csv => write_csv(file, &store.column_names(name), &mut parts),
                    _ => write_jsonl(file, &mut parts),
                };
                output::write_with(&path, fill).map_err(|error| output::error(&path, &error))?;
            }
        }
        written.push(path);
    }
    Ok(written)
}

fn write_csv(file: &mut dyn Write, names: &[&str], parts: &mut dyn Iterator<Item = Result<Table>>) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(file);
    writer.write_record(names)?;
    for table in parts {
        let table = table.map_err(io::Error::other)?;
        for row in 0..table.len() {
            writer.write_record(table.columns().map(|(_, column)| column.show(row)))?;
        }
    }
    writer.flush()
}

fn write_jsonl(file: &mut dyn Write, parts: &mut dyn Iterator<Item = Result<Table>>) -> io::Result<()> {
    for table in parts {
        let table = table.map_err(io::Error::other)?;
        for row in 0..table.len() {
            let fields = table.columns().map(|(name, column)| (name.to_string(), to_json(column, row)));
            writeln!(file, "{}", Value::Object(fields.collect::<Map<_, _>>()))?;
        }
    }
    Ok(())
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
