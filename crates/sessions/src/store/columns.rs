//! Tables as Parquet files, through the low-level column interface.
//!
//! Lists have the standard three-level structure, so pandas, polars and pyarrow read the files as
//! they are. Nothing in a file depends on time or machine: equal tables give equal bytes.

use crate::table::{Column, DataType, Table};
use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType, DataType as Physical, FloatType, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use pellucid_models::{Error, Result, output};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

const DAMAGED: &str = "copy the store again, or run its session again";

/// Writes a table as a Parquet file with one row group: complete, or not at all.
pub fn write_table(path: &Path, table: &Table) -> Result<()> {
    let columns: Vec<(&str, DataType)> = table.columns().map(|(name, column)| (name, column.dtype())).collect();
    let mut writes = |writer: &mut Writer<'_>| write_row_group(writer, table);
    write_file(path, &columns, &mut writes)
}

/// Writes a Parquet file with one row group for each table that `next` returns. All have these
/// columns; only one at a time is in memory.
pub(super) fn write_row_groups(
    path: &Path,
    columns: &[(&str, DataType)],
    next: &mut (dyn FnMut() -> Option<Result<Table>> + Send),
) -> Result<()> {
    let mut writes = |writer: &mut Writer<'_>| {
        while let Some(table) = next() {
            let table = table.map_err(|error| ParquetError::External(Box::new(error)))?;
            // A part without latents has no rows to write.
            if !table.is_empty() {
                write_row_group(writer, &table)?;
            }
        }
        Ok(())
    };
    write_file(path, columns, &mut writes)
}

type Writer<'a> = SerializedFileWriter<&'a mut (dyn Write + Send)>;

fn write_file(
    path: &Path,
    columns: &[(&str, DataType)],
    writes: &mut (dyn FnMut(&mut Writer<'_>) -> ParquetResult<()> + Send),
) -> Result<()> {
    let mut fill = |file: &mut (dyn Write + Send)| -> ParquetResult<()> {
        let fields: String = columns.iter().map(|(name, dtype)| field(name, *dtype)).collect();
        let schema = parse_message_type(&format!("message table {{ {fields} }}"))?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
        writes(&mut writer)?;
        writer.into_inner()?;
        Ok(())
    };
    output::write_with(path, |file: &mut (dyn Write + Send)| fill(file).map_err(io::Error::other)).map_err(|error| {
        Error::usage(
            format!("cannot write {}: {error}", path.display()),
            "check that the directory exists and the disk is not full; finished parts are kept, run again to resume",
        )
    })
}

fn write_row_group(writer: &mut Writer<'_>, table: &Table) -> ParquetResult<()> {
    let mut group = writer.next_row_group()?;
    for (_, column) in table.columns() {
        let Some(mut target) = group.next_column()? else {
            return Err(ParquetError::General("the schema has fewer columns than the table".into()));
        };
        write_column(&mut target, column)?;
        target.close()?;
    }
    group.close()?;
    Ok(())
}

fn field(name: &str, dtype: DataType) -> String {
    let list = |element: &str| {
        format!("required group {name} (LIST) {{ repeated group list {{ required {element} element; }} }} ")
    };
    match dtype {
        DataType::Int64 => format!("required int64 {name}; "),
        DataType::Float32 => format!("required float {name}; "),
        DataType::OptionalFloat32 => format!("optional float {name}; "),
        DataType::Text => format!("required binary {name} (STRING); "),
        DataType::Int64List => list("int64"),
        DataType::Float32List => list("float"),
    }
}

fn write_column(target: &mut SerializedColumnWriter<'_>, column: &Column) -> ParquetResult<()> {
    match column {
        Column::Int64(values) => target.typed::<Int64Type>().write_batch(values, None, None)?,
        Column::Float32(values) => target.typed::<FloatType>().write_batch(values, None, None)?,
        Column::OptionalFloat32(values) => {
            let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
            let present: Vec<f32> = values.iter().copied().flatten().collect();
            target.typed::<FloatType>().write_batch(&present, Some(&levels), None)?
        }
        Column::Text(values) => {
            let bytes: Vec<ByteArray> = values.iter().map(|value| value.as_str().into()).collect();
            target.typed::<ByteArrayType>().write_batch(&bytes, None, None)?
        }
        Column::Int64List(lists) => write_lists::<Int64Type>(target, lists)?,
        Column::Float32List(lists) => write_lists::<FloatType>(target, lists)?,
    };
    Ok(())
}

/// Levels of a list: an empty one has definition level 0; elements have 1, and all but the first of
/// a list have repetition level 1.
fn write_lists<T: Physical>(target: &mut SerializedColumnWriter<'_>, lists: &[Vec<T::T>]) -> ParquetResult<usize> {
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    for list in lists {
        for index in 0..list.len().max(1) {
            definitions.push(i16::from(!list.is_empty()));
            repetitions.push(i16::from(index > 0));
        }
    }
    let values: Vec<T::T> = lists.iter().flatten().cloned().collect();
    target.typed::<T>().write_batch(&values, Some(&definitions), Some(&repetitions))
}

/// Reads one column of a file.
pub fn read_column(path: &Path, name: &str, dtype: DataType) -> Result<Column> {
    read(path, name, dtype).map_err(|error| Error::invalid(path, error.to_string(), DAMAGED))
}

/// Reads the columns of a file, each with its type.
pub fn read_table(path: &Path, columns: &[(String, DataType)]) -> Result<Table> {
    let mut table = Table::default();
    for (name, dtype) in columns {
        let column = read_column(path, name, *dtype)?;
        table.set(name.as_str(), column).map_err(|problem| Error::invalid(path, problem, DAMAGED))?;
    }
    Ok(table)
}

fn read(path: &Path, name: &str, dtype: DataType) -> ParquetResult<Column> {
    let reader = SerializedFileReader::new(File::open(path)?)?;
    let metadata = reader.metadata();
    let columns = metadata.file_metadata().schema_descr().columns();
    let index = columns.iter().position(|column| column.path().parts().first().is_some_and(|own| own == name));
    let Some(index) = index else { return Err(ParquetError::General(format!("there is no column `{name}`"))) };
    let mut whole = Column::empty(dtype);
    for group in 0..metadata.num_row_groups() {
        let rows = metadata.row_group(group).num_rows() as usize;
        let column = reader.get_row_group(group)?.get_column_reader(index)?;
        whole.append(read_chunk(column, rows, dtype)?);
    }
    Ok(whole)
}

fn read_chunk(reader: ColumnReader, rows: usize, dtype: DataType) -> ParquetResult<Column> {
    Ok(match (dtype, reader) {
        (DataType::Int64, reader @ ColumnReader::Int64ColumnReader(_)) => {
            Column::Int64(records::<Int64Type>(reader, rows)?.values)
        }
        (DataType::Float32, reader @ ColumnReader::FloatColumnReader(_)) => {
            Column::Float32(records::<FloatType>(reader, rows)?.values)
        }
        (DataType::OptionalFloat32, reader @ ColumnReader::FloatColumnReader(_)) => {
            let records = records::<FloatType>(reader, rows)?;
            let mut values = records.values.into_iter();
            let value = |level: &i16| if *level > 0 { values.next() } else { None };
            Column::OptionalFloat32(records.definitions.iter().map(value).collect())
        }
        (DataType::Text, reader @ ColumnReader::ByteArrayColumnReader(_)) => {
            let values = records::<ByteArrayType>(reader, rows)?.values;
            Column::Text(values.iter().map(|bytes| Ok(bytes.as_utf8()?.to_string())).collect::<ParquetResult<_>>()?)
        }
        (DataType::Int64List, reader @ ColumnReader::Int64ColumnReader(_)) => {
            Column::Int64List(records::<Int64Type>(reader, rows)?.lists())
        }
        (DataType::Float32List, reader @ ColumnReader::FloatColumnReader(_)) => {
            Column::Float32List(records::<FloatType>(reader, rows)?.lists())
        }
        _ => return Err(ParquetError::General(format!("a column does not have the type {dtype}"))),
    })
}

struct Records<T> {
    values: Vec<T>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

impl<T> Records<T> {
    fn lists(self) -> Vec<Vec<T>> {
        let mut values = self.values.into_iter();
        let mut lists = Vec::new();
        for (definition, repetition) in self.definitions.iter().zip(&self.repetitions) {
            if *repetition == 0 {
                lists.push(Vec::new());
            }
            if *definition > 0
                && let Some(list) = lists.last_mut()
            {
                list.extend(values.next());
            }
        }
        lists
    }
}

fn records<T: Physical>(reader: ColumnReader, rows: usize) -> ParquetResult<Records<T::T>> {
    let mut reader = get_typed_column_reader::<T>(reader);
    let mut records = Records { values: Vec::new(), definitions: Vec::new(), repetitions: Vec::new() };
    let mut read = 0;
    while read < rows {
        let (more, ..) = reader.read_records(
            rows - read,
            Some(&mut records.definitions),
            Some(&mut records.repetitions),
            &mut records.values,
        )?;
        if more == 0 {
            return Err(ParquetError::General(format!("a column ends after {read} of {rows} rows")));
        }
        read += more;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        let columns = [
            ("i", Column::Int64(vec![1, -2, i64::MAX])),
            ("f", Column::Float32(vec![0.5, f32::NAN, -0.0])),
            ("o", Column::OptionalFloat32(vec![None, Some(1.5), None])),
            ("t", Column::Text(vec!["a".into(), String::new(), "ü\n".into()])),
            ("il", Column::Int64List(vec![vec![1, 2], vec![], vec![3]])),
            ("fl", Column::Float32List(vec![vec![], vec![], vec![1.0, 2.0, 3.0]])),
        ];
        for (name, column) in columns {
            table.set(name, column).expect("equal lengths");
        }
        table
    }

    #[test]
    fn every_type_of_column_is_read_back_bit_by_bit() {
        let directory = tempfile::tempdir().expect("a directory");
        for table in [table(), {
            let mut empty = Table::default();
            for (name, column) in table().columns() {
                empty.set(name, Column::empty(column.dtype())).expect("no rows");
            }
            empty
        }] {
            let path = directory.path().join("t.parquet");
            write_table(&path, &table).expect("written");
            for (name, column) in table.columns() {
                let read = read_column(&path, name, column.dtype()).expect("read");
                assert_eq!((read.len(), read.first_difference(column)), (column.len(), None), "{name}");
            }
            let first = std::fs::read(&path).expect("the file");
            write_table(&path, &table).expect("written again");
            assert_eq!(first, std::fs::read(&path).expect("the file"), "equal tables give equal bytes");
        }
    }

    #[test]
    fn damaged_files_and_other_types_are_errors() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t.parquet");
        write_table(&path, &table()).expect("written");
        assert!(read_column(&path, "missing", DataType::Int64).unwrap_err().to_string().contains("`missing`"));
        assert!(read_column(&path, "i", DataType::Float32).unwrap_err().to_string().contains("float32"));
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("cut");
        assert!(read_column(&path, "i", DataType::Int64).is_err());
        assert!(write_table(&directory.path().join("no/t.parquet"), &table()).is_err());
    }
}
