//! Compares two stores: provenance, rows and columns.

use super::{Store, TABLES};
use crate::table::Column;
use pellucid_models::Result;
use serde::Serialize;

/// Differences of two stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreDifference {
    /// Differences of model, data, autoencoders and ops, one sentence each.
    pub provenance: Vec<String>,
    /// Columns that differ.
    pub columns: Vec<ColumnDifference>,
}

/// Differences of a column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnDifference {
    /// The table.
    pub table: String,
    /// The column.
    pub column: String,
    /// Number of rows of the longer column.
    pub rows: usize,
    /// Rows that differ in at least one bit.
    pub rows_different: usize,
    /// The first row that differs; `None` if only one store has the column.
    pub first_row: Option<usize>,
    /// Largest absolute difference of floats.
    pub max_difference: Option<f64>,
    /// Value of the first store in that row, or which store has the column.
    pub left: String,
    /// Value of the second store.
    pub right: String,
}

impl StoreDifference {
    /// Whether the results are equal, bit by bit.
    pub fn is_equal(&self) -> bool {
        self.columns.is_empty()
    }
}

/// Compares two stores column by column.
pub fn diff(left: &Store, right: &Store) -> Result<StoreDifference> {
    let mut difference = StoreDifference { provenance: provenance(left, right), columns: Vec::new() };
    for table in TABLES {
        let (mine, yours) = (left.column_names(table), right.column_names(table));
        for &column in mine.iter().chain(yours.iter().filter(|name| !mine.contains(name))) {
            if !(mine.contains(&column) && yours.contains(&column)) {
                let which = if mine.contains(&column) { "first" } else { "second" };
                difference.columns.push(ColumnDifference {
                    table: table.into(),
                    column: column.into(),
                    rows: 0,
                    rows_different: 0,
                    first_row: None,
                    max_difference: None,
                    left: format!("only the {which} store has this column"),
                    right: String::new(),
                });
                continue;
            }
            let columns = (left.column(table, column)?, right.column(table, column)?);
            difference.columns.extend(compare(table, column, &columns.0, &columns.1));
        }
    }
    Ok(difference)
}

fn provenance(left: &Store, right: &Store) -> Vec<String> {
    let (a, b) = (left.manifest(), right.manifest());
    let mut lines = Vec::new();
    let mut compare = |what: &str, a: String, b: String| {
        if a != b {
            lines.push(format!("{what}: {a} and {b}"));
        }
    };
    let short = |hash: &str| hash.chars().take(12).collect::<String>();
    compare("model", short(&a.model.fingerprint), short(&b.model.fingerprint));
    compare("dataset", short(&a.dataset.fingerprint), short(&b.dataset.fingerprint));
    let saes = |manifest: &super::Manifest| {
        let each = manifest.saes.iter().map(|sae| format!("{} {}", sae.site, short(&sae.fingerprint)));
        each.collect::<Vec<_>>().join(", ")
    };
    compare("SAEs", saes(a), saes(b));
    let ops = |manifest: &super::Manifest| manifest.ops.iter().map(|op| op.name.as_str()).collect::<Vec<_>>().join(".");
    compare("ops", ops(a), ops(b));
    compare("version", a.version.clone(), b.version.clone());
    lines
}

/// Compares two columns; `None` if they are equal bit by bit.
pub(crate) fn compare(table: &str, name: &str, left: &Column, right: &Column) -> Option<ColumnDifference> {
    let first = left.first_difference(right)?;
    let rows = left.len().max(right.len());
    let show = |column: &Column| {
        if first < column.len() { shorten(&column.show(first)) } else { "no row".into() }
    };
    let shared = left.len().min(right.len());
    let different = (0..shared).filter(|&row| {
        left.dtype() != right.dtype() || left.slice(row, row + 1).first_difference(&right.slice(row, row + 1)).is_some()
    });
    Some(ColumnDifference {
        table: table.into(),
        column: name.into(),
        rows,
        rows_different: different.count() + rows - shared,
        first_row: Some(first),
        max_difference: max_difference(left, right),
        left: show(left),
        right: show(right),
    })
}

fn max_difference(left: &Column, right: &Column) -> Option<f64> {
    let largest =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
    match (left, right) {
        (Column::Float32(a), Column::Float32(b)) => Some(largest(a, b)),
        (Column::Float32List(a), Column::Float32List(b)) => {
            Some(a.iter().zip(b).map(|(a, b)| largest(a, b)).fold(0.0, f64::max))
        }
        _ => None,
    }
}

fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
