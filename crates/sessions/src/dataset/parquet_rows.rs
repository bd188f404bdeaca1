//! Records of a Parquet file.

use super::Record;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use pellucid_models::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Reads all rows. Numbers, texts, booleans and lists of them become JSON values; other types are
/// an error that names the column.
pub(super) fn read_parquet(path: &Path) -> Result<Vec<Record>> {
    let fail = |error: parquet::errors::ParquetError| {
        Error::invalid(path, error.to_string(), "check that this is a Parquet file, uncompressed or with Snappy")
    };
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let reader = SerializedFileReader::new(file).map_err(fail)?;
    let mut records = Vec::new();
    for (index, row) in reader.get_row_iter(None).map_err(fail)?.enumerate() {
        let place = format!("{}, row {}", path.display(), index + 1);
        let mut fields = serde_json::Map::new();
        for (name, field) in row.map_err(fail)?.into_columns() {
            let value = to_json(&field).ok_or_else(|| {
                Error::usage(
                    format!("{place}: the column `{name}` has a type that prompts and labels cannot use"),
                    "leave out the column, or convert it to text or numbers",
                )
            })?;
            fields.insert(name, value);
        }
        records.push(Record { place, fields });
    }
    Ok(records)
}

fn to_json(field: &Field) -> Option<Value> {
    Some(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(value) => (*value).into(),
        Field::Short(value) => (*value).into(),
        Field::Int(value) => (*value).into(),
        Field::Long(value) => (*value).into(),
        Field::UByte(value) => (*value).into(),
        Field::UShort(value) => (*value).into(),
        Field::UInt(value) => (*value).into(),
        Field::ULong(value) => (*value).into(),
        Field::Float(value) => (*value).into(),
        Field::Double(value) => (*value).into(),
        Field::Str(value) => value.clone().into(),
        Field::Bytes(value) => value.as_utf8().ok()?.into(),
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(to_json).collect::<Option<_>>()?),
        Field::Group(row) => {
            let members = row.get_column_iter().map(|(name, field)| Some((name.clone(), to_json(field)?)));
            Value::Object(members.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}
