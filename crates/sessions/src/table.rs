//! Columns and tables in memory.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// 64-bit integers.
    Int64,
    /// 32-bit floats.
    Float32,
    /// 32-bit floats, some of which are absent.
    OptionalFloat32,
    /// Text.
    Text,
    /// Lists of 64-bit integers.
    Int64List,
    /// Lists of 32-bit floats.
    Float32List,
}

impl DataType {
    /// Returns its name, as in a manifest.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Int64 => "int64",
            DataType::Float32 => "float32",
            DataType::OptionalFloat32 => "optional_float32",
            DataType::Text => "text",
            DataType::Int64List => "int64_list",
            DataType::Float32List => "float32_list",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // named for their types
pub enum Column {
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    OptionalFloat32(Vec<Option<f32>>),
    Text(Vec<String>),
    Int64List(Vec<Vec<i64>>),
    Float32List(Vec<Vec<f32>>),
}

/// Evaluates the same expression for every type of column.
macro_rules! each {
    ($column:expr, $values:ident => $result:expr) => {
        match $column {
            Column::Int64($values) => $result,
            Column::Float32($values) => $result,
            Column::OptionalFloat32($values) => $result,
            Column::Text($values) => $result,
            Column::Int64List($values) => $result,
            Column::Float32List($values) => $result,
        }
    };
}

impl Column {
    /// Returns an empty column of a type.
    pub fn empty(dtype: DataType) -> Column {
        match dtype {
            DataType::Int64 => Column::Int64(Vec::new()),
            DataType::Float32 => Column::Float32(Vec::new()),
            DataType::OptionalFloat32 => Column::OptionalFloat32(Vec::new()),
            DataType::Text => Column::Text(Vec::new()),
            DataType::Int64List => Column::Int64List(Vec::new()),
            DataType::Float32List => Column::Float32List(Vec::new()),
        }
    }

    /// Returns its type.
    pub fn dtype(&self) -> DataType {
        match self {
            Column::Int64(_) => DataType::Int64,
            Column::Float32(_) => DataType::Float32,
            Column::OptionalFloat32(_) => DataType::OptionalFloat32,
            Column::Text(_) => DataType::Text,
            Column::Int64List(_) => DataType::Int64List,
            Column::Float32List(_) => DataType::Float32List,
        }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        each!(self, values => values.len())
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the rows of another column; returns false if its type differs.
    pub fn append(&mut self, other: Column) -> bool {
        match (self, other) {
            (Column::Int64(a), Column::Int64(b)) => a.extend(b),
            (Column::Float32(a), Column::Float32(b)) => a.extend(b),
            (Column::OptionalFloat32(a), Column::OptionalFloat32(b)) => a.extend(b),
            (Column::Text(a), Column::Text(b)) => a.extend(b),
            (Column::Int64List(a), Column::Int64List(b)) => a.extend(b),
            (Column::Float32List(a), Column::Float32List(b)) => a.extend(b),
            _ => return false,
        }
        true
    }

    /// The integers, if it has them.
    pub fn integers(&self) -> Option<&[i64]> {
        if let Column::Int64(values) = self { Some(values) } else { None }
    }

    /// The floats, if it has them.
    pub fn floats(&self) -> Option<&[f32]> {
        if let Column::Float32(values) = self { Some(values) } else { None }
    }

    /// The texts, if it has them.
    pub fn texts(&self) -> Option<&[String]> {
        if let Column::Text(values) = self { Some(values) } else { None }
    }

    /// Returns one value as text, for messages and CSV.
    pub fn show(&self, row: usize) -> String {
        fn list<T: ToString>(values: &[T]) -> String {
            format!("[{}]", values.iter().map(T::to_string).collect::<Vec<_>>().join(", "))
        }
        match self {
            Column::Int64(values) => values[row].to_string(),
            Column::Float32(values) => values[row].to_string(),
            Column::OptionalFloat32(values) => values[row].map(|value| value.to_string()).unwrap_or_default(),
            Column::Text(values) => values[row].clone(),
            Column::Int64List(values) => list(&values[row]),
            Column::Float32List(values) => list(&values[row]),
        }
    }

    /// Returns the first row whose bits differ; rows that only one column has differ.
    pub fn first_difference(&self, other: &Column) -> Option<usize> {
        fn first<T>(a: &[T], b: &[T], same: impl Fn(&T, &T) -> bool) -> Option<usize> {
            let differs = a.iter().zip(b).position(|(a, b)| !same(a, b));
            differs.or((a.len() != b.len()).then(|| a.len().min(b.len())))
        }
        let bits = |a: &f32, b: &f32| a.to_bits() == b.to_bits();
        match (self, other) {
            (Column::Int64(a), Column::Int64(b)) => first(a, b, i64::eq),
            (Column::Float32(a), Column::Float32(b)) => first(a, b, bits),
            (Column::OptionalFloat32(a), Column::OptionalFloat32(b)) => {
                first(a, b, |a, b| a.map(f32::to_bits) == b.map(f32::to_bits))
            }
            (Column::Text(a), Column::Text(b)) => first(a, b, String::eq),
            (Column::Int64List(a), Column::Int64List(b)) => first(a, b, Vec::eq),
            (Column::Float32List(a), Column::Float32List(b)) => {
                first(a, b, |a, b| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| bits(a, b)))
            }
            _ => Some(0),
        }
    }

    /// Returns the rows from `start` to `end`.
    pub fn slice(&self, start: usize, end: usize) -> Column {
        match self {
            Column::Int64(values) => Column::Int64(values[start..end].to_vec()),
            Column::Float32(values) => Column::Float32(values[start..end].to_vec()),
            Column::OptionalFloat32(values) => Column::OptionalFloat32(values[start..end].to_vec()),
            Column::Text(values) => Column::Text(values[start..end].to_vec()),
            Column::Int64List(values) => Column::Int64List(values[start..end].to_vec()),
            Column::Float32List(values) => Column::Float32List(values[start..end].to_vec()),
        }
    }
}

/// Columns of equal length, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    columns: Vec<(String, Column)>,
}

impl Table {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns with their names, in order.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.columns.iter().map(|(name, column)| (name.as_str(), column))
    }

    /// Returns a column.
    pub fn get(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(own, _)| own == name).map(|(_, column)| column)
    }

    /// Adds a column, or replaces the one of this name.
    ///
    /// # Errors
    /// The number of rows, if it differs from the table's.
    pub fn set(&mut self, name: impl Into<String>, column: Column) -> Result<(), String> {
        let name = name.into();
        if !self.columns.is_empty() && column.len() != self.len() {
            return Err(format!("`{name}` has {} rows, but the table has {}", column.len(), self.len()));
        }
        match self.columns.iter_mut().find(|(own, _)| *own == name) {
            Some((_, old)) => *old = column,
            None => self.columns.push((name, column)),
        }
        Ok(())
    }

    /// Removes a column and returns it.
    pub fn take(&mut self, name: &str) -> Option<Column> {
        let index = self.columns.iter().position(|(own, _)| own == name)?;
        Some(self.columns.remove(index).1)
    }

    /// Appends the rows of a table with the same columns.
    ///
    /// # Errors
    /// The column that the two tables do not share.
    pub fn append(&mut self, other: Table) -> Result<(), String> {
        if self.columns.is_empty() {
            *self = other;
            return Ok(());
        }
        let names = |table: &Table| table.columns.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(self) != names(&other) {
            return Err(format!("columns {:?} and {:?}", names(self), names(&other)));
        }
        for ((name, own), (_, more)) in self.columns.iter_mut().zip(other.columns) {
            if !own.append(more) {
                return Err(format!("column `{name}` changes its type"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_other_lengths_or_types_are_refused() {
        let mut table = Table::default();
        table.set("a", Column::Int64(vec![1, 2])).expect("the first column");
        assert!(table.set("b", Column::Float32(vec![1.0])).unwrap_err().contains("`b` has 1 rows"));
        let mut other = Table::default();
        other.set("a", Column::Text(vec!["x".into()])).expect("the first column");
        assert!(table.append(other).unwrap_err().contains("`a`"));
    }

    #[test]
    fn differences_are_found_by_bits() {
        let column = Column::Float32(vec![0.0, f32::NAN, 1.0]);
        assert_eq!(column.first_difference(&column.clone()), None);
        assert_eq!(column.first_difference(&Column::Float32(vec![-0.0, f32::NAN, 1.0])), Some(0));
        assert_eq!(column.first_difference(&Column::Float32(vec![0.0, f32::NAN])), Some(2));
        assert_eq!(column.first_difference(&Column::Int64(vec![0, 1, 2])), Some(0));
    }
}
