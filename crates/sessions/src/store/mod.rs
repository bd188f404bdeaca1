//! Stores: the results of a session as a directory of Parquet tables with a manifest.
//!
//! ```text
//! out/sae/
//!   manifest.json                  fingerprints, provenance of columns, phases, hashes of all files
//!   examples/part-00000.parquet    one row per example
//!   latents/part-00000.parquet     one row per example and active latent
//!   arrays.safetensors             dense arrays, if the session asks for them
//! ```
//!
//! A session writes to `out/sae.partial` and renames it when everything is there (`writer.rs`), so
//! a directory with a manifest is complete. `columns.rs` reads and writes Parquet; `summary.rs`,
//! `text.rs` and `html.rs` show results; `diff.rs` compares two stores; `export.rs` converts one.

mod columns;
mod dense;
mod diff;
mod export;
mod html;
mod manifest;
mod summary;
mod text;
mod writer;

use columns::write_row_groups;
pub use columns::{read_column, read_table, write_table};
pub use dense::{DenseArray, dense_arrays};
pub(crate) use diff::compare;
pub use diff::{ColumnDifference, StoreDifference, diff};
pub use export::{ExportFormat, export};
pub use html::to_html;
pub use manifest::{
    ColumnOrigin, DatasetRecord, FileRecord, Manifest, ModelRecord, OpRecord, PartRecord, SCHEMA, SaeRecord,
};
pub use summary::{HookSummary, LatentSummary, Summary, summarize};
pub use text::{diff_text, phases_text, summary_text};
pub(crate) use writer::{Found, StoreWriter, content_hash};

use crate::hash::file_hash;
use crate::table::{Column, DataType, Table};
use pellucid_models::{Error, Result};
use std::path::{Path, PathBuf};

/// Whether a session has begun to write a store here and has not finished.
pub fn is_unfinished(path: &Path) -> bool {
    !path.join(manifest::MANIFEST).exists() && writer::partial_path(path).exists()
}

/// The tables of a store.
pub const TABLES: [&str; 2] = ["examples", "latents"];

/// A complete store. Columns are read when they are asked for.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
    manifest: Manifest,
}

impl Store {
    /// Opens a store: reads its manifest.
    ///
    /// # Errors
    /// If the directory is not a store, its session has not finished, or its schema is newer than
    /// this version reads.
    pub fn open(path: &Path) -> Result<Store> {
        let manifest = Manifest::read(path)?;
        Ok(Store { path: path.to_path_buf(), manifest })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The names of a table's columns, in order.
    pub fn column_names(&self, table: &str) -> Vec<&str> {
        let own = self.manifest.columns.iter().filter(|column| column.table == table);
        own.map(|column| column.name.as_str()).collect()
    }

    /// The columns of a table with their types, in order.
    fn column_types(&self, table: &str) -> Vec<(&str, DataType)> {
        let own = self.manifest.columns.iter().filter(|column| column.table == table);
        own.map(|column| (column.name.as_str(), column.dtype)).collect()
    }

    /// Returns the number of rows of a table.
    pub fn rows(&self, table: &str) -> usize {
        self.manifest.parts.iter().filter_map(|part| part.files.get(table)).map(|file| file.rows).sum()
    }

    /// Reads one column of a table, without touching the others.
    pub fn column(&self, table: &str, name: &str) -> Result<Column> {
        let known = self.manifest.columns.iter().find(|column| column.table == table && column.name == name);
        let Some(known) = known else {
            let names = self.column_names(table);
            let remedy = if names.is_empty() {
                format!("its tables are {}", TABLES.join(" and "))
            } else {
                format!("its columns are {}", names.join(", "))
            };
            return Err(Error::usage(format!("{} has no column `{name}` in `{table}`", self.path.display()), remedy));
        };
        let mut whole = Column::empty(known.dtype);
        for file in self.files(table) {
            let more = read_column(&file, name, known.dtype)?;
            if !whole.append(more) {
                return Err(Error::invalid(file, format!("`{name}` has another type"), "run the session again"));
            }
        }
        Ok(whole)
    }

    /// The number of parts.
    pub fn parts(&self) -> usize {
        self.manifest.parts.len()
    }

    /// Reads one column of one part.
    pub fn part_column(&self, table: &str, name: &str, part: usize) -> Result<Column> {
        let dtype = self.manifest.columns.iter().find(|column| column.table == table && column.name == name);
        let file = self.manifest.parts.get(part).and_then(|part| part.files.get(table));
        match (dtype, file) {
            (Some(known), Some(file)) => read_column(&self.path.join(table).join(&file.file), name, known.dtype),
            (Some(known), None) => Ok(Column::empty(known.dtype)),
            (None, _) => self.column(table, name),
        }
    }

    /// Reads a whole table.
    pub fn table(&self, table: &str) -> Result<Table> {
        let mut whole = Table::default();
        for name in self.column_names(table) {
            let column = self.column(table, name)?;
            whole.set(name, column).map_err(|problem| Error::invalid(&self.path, problem, "run the session again"))?;
        }
        Ok(whole)
    }

    /// Reads one part of a table.
    pub(crate) fn part_table(&self, table: &str, part: usize) -> Result<Table> {
        let mut whole = Table::default();
        for name in self.column_names(table) {
            let column = self.part_column(table, name, part)?;
            whole.set(name, column).map_err(|problem| Error::invalid(&self.path, problem, "run the session again"))?;
        }
        Ok(whole)
    }

    /// The first rows of a column.
    pub fn head(&self, table: &str, name: &str, rows: usize) -> Result<Column> {
        let mut head = self.part_column(table, name, 0)?;
        for part in 1..self.parts() {
            if head.len() >= rows {
                break;
            }
            head.append(self.part_column(table, name, part)?);
        }
        Ok(head.slice(0, rows.min(head.len())))
    }

    /// Whether a table has a column.
    pub fn has(&self, table: &str, name: &str) -> bool {
        self.column_names(table).contains(&name)
    }

    /// Checks that every file has the contents that the manifest records.
    pub fn verify(&self) -> Result<()> {
        for part in &self.manifest.parts {
            for (table, record) in &part.files {
                let path = self.path.join(table).join(&record.file);
                if file_hash(&path)? != record.sha256 {
                    return Err(Error::invalid(
                        path,
                        "its contents are not those that the session wrote",
                        "copy the store again, or run its session again",
                    ));
                }
            }
        }
        Ok(())
    }

    fn files(&self, table: &str) -> impl Iterator<Item = PathBuf> {
        let directory = self.path.join(table);
        self.manifest.parts.iter().filter_map(move |part| Some(directory.join(&part.files.get(table)?.file)))
    }
}
