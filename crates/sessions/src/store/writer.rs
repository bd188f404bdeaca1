//! Writes a store so that it is never readable before it is complete.
//!
//! Parts go to `PATH.partial`, each with a record that is written last. Only one session at a time
//! holds the lock in that directory; the operating system frees it when a process ends, however it
//! ends. At the end the manifest is written and the directory renamed to `PATH`. A session that was
//! killed leaves `PATH.partial`, whose parts the next run reuses by their content keys.

use super::columns::write_table;
use super::dense::{dense_arrays, write_arrays};
use super::manifest::{FileRecord, MANIFEST, Manifest, PartRecord};
use super::{Store, TABLES};
use crate::hash::{Hasher, file_hash};
use crate::table::Table;
use pellucid_engine::Remedy;
use pellucid_models::{Error, Result, output};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

const FINISHED_PARTS: &str =
    "check that the directory may be written and the disk is not full; finished parts are kept, run again to resume";

/// Directory in which a store is written.
pub(super) fn partial_path(path: &Path) -> PathBuf {
    with_suffix(path, ".partial")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The result of opening a store for writing.
pub(crate) enum Found {
    /// The store already holds the results of these keys.
    UpToDate(Box<Store>),
    /// Results are missing.
    Writer(Box<StoreWriter>),
}

/// A store in progress.
pub(crate) struct StoreWriter {
    path: PathBuf,
    partial: PathBuf,
    /// Holds the lock.
    lock: File,
    /// The store that will be replaced, whose parts can be reused.
    previous: Option<Store>,
}

fn fail(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |error| Error::usage(format!("cannot write {}: {error}", path.display()), FINISHED_PARTS)
}

impl StoreWriter {
    /// Opens a store for writing the parts of these keys. An existing store of other results is
    /// replaced only with `replace`.
    pub fn open(path: &Path, keys: &[String], replace: bool) -> Result<Found> {
        let previous = check_target(path)?;
        if let Some(store) = &previous {
            if store.manifest().keys().eq(keys.iter().map(String::as_str)) {
                return Ok(Found::UpToDate(Box::new(store.clone())));
            }
            if !replace {
                return Err(Error::usage(
                    format!("{} holds the results of another session or another version of this one", path.display()),
                    Remedy::ReplaceStore,
                ));
            }
        }
        let partial = partial_path(path);
        for table in TABLES.iter().chain(&["parts"]) {
            let directory = partial.join(table);
            fs::create_dir_all(&directory).map_err(fail(&directory))?;
        }
        let lock_path = partial.join("lock");
        let lock = File::create(&lock_path).map_err(fail(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::usage(
                    format!("another session is writing {}", path.display()),
                    "wait until it has finished, or choose another `output.path`",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(fail(&lock_path)(error)),
        }
        let path = path.to_path_buf();
        Ok(Found::Writer(Box::new(StoreWriter { path, partial, lock, previous })))
    }

    /// Returns the record of a finished part with this key: one that an earlier run of the session
    /// left, or one of the store that is replaced.
    pub fn reuse(&self, index: usize, key: &str) -> Result<Option<PartRecord>> {
        let record = self.record_path(index);
        let left = fs::read(&record).ok().and_then(|bytes| serde_json::from_slice::<PartRecord>(&bytes).ok());
        if let Some(part) = left.filter(|part| part.key == key && is_intact(&self.partial, part)) {
            return Ok(Some(part));
        }
        let Some(previous) = &self.previous else { return Ok(None) };
        let old = previous.manifest().parts.iter().find(|part| part.key == key && is_intact(previous.path(), part));
        let Some(old) = old else { return Ok(None) };
        let mut part = old.clone();
        for (table, file) in &mut part.files {
            let from = previous.path().join(table).join(&file.file);
            file.file = part_name(index);
            let to = self.partial.join(table).join(&file.file);
            fs::copy(&from, &to).map_err(fail(&to))?;
        }
        self.write_record(index, &part)?;
        Ok(Some(part))
    }

    /// Writes a part and its record.
    pub fn write_part(&self, index: usize, key: &str, tables: [&Table; 2]) -> Result<PartRecord> {
        let mut files = BTreeMap::new();
        for (name, table) in TABLES.iter().zip(tables).filter(|(_, table)| table.columns().next().is_some()) {
            let path = self.partial.join(name).join(part_name(index));
            write_table(&path, table)?;
            let record = FileRecord { file: part_name(index), rows: table.len(), sha256: file_hash(&path)? };
            files.insert(name.to_string(), record);
        }
        let part = PartRecord { key: key.to_string(), files };
        self.write_record(index, &part)?;
        Ok(part)
    }

    fn record_path(&self, index: usize) -> PathBuf {
        self.partial.join("parts").join(format!("{index:05}.json"))
    }

    fn write_record(&self, index: usize, part: &PartRecord) -> Result<()> {
        let text = serde_json::to_vec_pretty(part).unwrap_or_default();
        let path = self.record_path(index);
        output::write(&path, &text).map_err(fail(&path))
    }

    /// Completes the store: removes files of no part, writes dense arrays if they are asked for and
    /// the manifest, and moves the directory to its place.
    pub fn finish(self, manifest: &Manifest, with_arrays: bool) -> Result<Store> {
        self.remove_strangers(manifest)?;
        if with_arrays {
            let store = Store { path: self.partial.clone(), manifest: manifest.clone() };
            write_arrays(&self.partial.join("arrays.safetensors"), &dense_arrays(&store)?)?;
        }
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(|error| Error::from(pellucid_engine::Error::Internal(error.to_string())))?;
        let path = self.partial.join(MANIFEST);
        output::write(&path, &text).map_err(fail(&path))?;
        let parts = self.partial.join("parts");
        fs::remove_dir_all(&parts).map_err(fail(&parts))?;
        let lock = self.partial.join("lock");
        fs::remove_file(&lock).map_err(fail(&lock))?;
        let old = with_suffix(&self.path, ".old");
        if self.path.exists() && self.previous.is_some() {
            fs::rename(&self.path, &old).map_err(fail(&self.path))?;
        }
        fs::rename(&self.partial, &self.path).map_err(fail(&self.path))?;
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // The rename is durable once the directory is flushed; some file systems refuse that.
            let _ = File::open(parent).and_then(|directory| directory.sync_all());
        }
        if self.previous.is_some() {
            // The new store is complete; a leftover of the old one is harmless.
            let _ = fs::remove_dir_all(&old);
        }
        drop(self.lock);
        Store::open(&self.path)
    }

    /// Removes files that an earlier run with more or other parts left.
    fn remove_strangers(&self, manifest: &Manifest) -> Result<()> {
        for table in TABLES {
            let directory = self.partial.join(table);
            let is_known = |name: &str| {
                manifest.parts.iter().filter_map(|part| part.files.get(table)).any(|file| file.file == name)
            };
            for entry in fs::read_dir(&directory).map_err(fail(&directory))?.flatten() {
                if !is_known(&entry.file_name().to_string_lossy()) {
                    fs::remove_file(entry.path()).map_err(fail(&entry.path()))?;
                }
            }
            if fs::read_dir(&directory).map_err(fail(&directory))?.next().is_none() {
                fs::remove_dir(&directory).map_err(fail(&directory))?;
            }
        }
        Ok(())
    }
}

fn part_name(index: usize) -> String {
    format!("part-{index:05}.parquet")
}

/// Whether the files of a part have the recorded contents: a machine that lost power may have kept
/// a record but not the file.
fn is_intact(store: &Path, part: &PartRecord) -> bool {
    let matches = |(table, file): (&String, &FileRecord)| {
        file_hash(&store.join(table).join(&file.file)).is_ok_and(|hash| hash == file.sha256)
    };
    part.files.iter().all(matches)
}

/// Checks that a store can be written here; returns the one that is there.
fn check_target(path: &Path) -> Result<Option<Store>> {
    if !path.exists() {
        return Ok(None);
    }
    if path.is_dir() && fs::read_dir(path).map_err(Error::io(path))?.next().is_none() {
        return Ok(None);
    }
    if path.join(MANIFEST).exists() {
        return Store::open(path).map(Some);
    }
    Err(Error::usage(
        format!("{} exists and is not a store", path.display()),
        "choose a directory that does not exist yet as `output.path`",
    ))
}

/// Returns the hash of the contents of all parts.
pub(crate) fn content_hash(parts: &[PartRecord]) -> String {
    let mut hasher = Hasher::default();
    for part in parts {
        for (table, file) in &part.files {
            hasher.add(table).add(&file.sha256);
        }
    }
    hasher.finish()
}
