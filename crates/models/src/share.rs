//! Weight sharing between the loads of one process.
//!
//! A load of files that are already loaded and still in use returns the same weights; a load that
//! arrives while another one reads the same files waits for it. The table holds weak references, so
//! weights are freed with their last user. A file that has changed on disk counts as another file.

use crate::error::{Error, Result};
use crate::load::{LoadedWeights, Storage};
use crate::mapped::FileState;
use crate::name_variants::NameVariant;
use pellucid_engine::{Model, WeakModel};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Identifies a load: two loads with equal keys share their weights.
#[derive(PartialEq, Eq)]
pub(crate) struct LoadKey {
    /// The model, then its adapters in their order.
    paths: Vec<PathState>,
    storage: Storage,
    /// Family that the model is read as; the mapping of its type may change between two loads.
    family: String,
}

/// A directory or file, with the metadata that detects a change of its contents.
#[derive(PartialEq, Eq)]
struct PathState {
    path: PathBuf,
    files: Vec<NamedFile>,
}

#[derive(PartialEq, Eq)]
struct NamedFile {
    name: OsString,
    state: FileState,
}

impl LoadKey {
    /// Returns the key of the model at `path`, or of the built-in model if absent.
    pub(crate) fn new(path: Option<&Path>, adapters: &[PathBuf], storage: Storage, family: &str) -> Result<LoadKey> {
        let paths = path.into_iter().chain(adapters.iter().map(PathBuf::as_path));
        let paths = paths.map(PathState::read).collect::<Result<_>>()?;
        Ok(LoadKey { paths, storage, family: family.to_owned() })
    }
}

impl PathState {
    fn read(path: &Path) -> Result<PathState> {
        let path = path.canonicalize().map_err(Error::io(path))?;
        if path.is_file() {
            let state = NamedFile::read(OsString::new(), &path).ok_or_else(|| gone(&path))?;
            return Ok(PathState { path, files: vec![state] });
        }
        let entries = std::fs::read_dir(&path).map_err(Error::io(&path))?;
        let relevant = entries.flatten().filter(|entry| affects_weights(&entry.file_name().to_string_lossy()));
        let mut files: Vec<NamedFile> =
            relevant.filter_map(|entry| NamedFile::read(entry.file_name(), &entry.path())).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(PathState { path, files })
    }
}

/// Whether the weights depend on a file of this name. Tokenizers, model cards and code do not
/// matter.
fn affects_weights(name: &str) -> bool {
    let ends = |end: &&str| name.ends_with(end);
    [".safetensors", ".bin", ".pt", ".pth", ".gguf", "config.json", ".index.json"].iter().any(ends)
}

fn gone(path: &Path) -> Error {
    Error::usage(format!("{} disappeared while loading", path.display()), "load the model again")
}

impl NamedFile {
    fn read(name: OsString, path: &Path) -> Option<NamedFile> {
        Some(NamedFile { name, state: FileState::of(&std::fs::metadata(path).ok()?) })
    }
}

/// Loaded weights, as a weak reference, with the name variants of that load.
struct SharedWeights {
    model: WeakModel,
    name_variants: Vec<NameVariant>,
}

/// Locked while a load is in progress, so that other loads of the same key wait.
type Slot = Arc<Mutex<Option<SharedWeights>>>;

static TABLE: Mutex<Vec<(LoadKey, Slot)>> = Mutex::new(Vec::new());
static LOADED: AtomicUsize = AtomicUsize::new(0);
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// Number of loads in this process so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Loads that read and packed weights.
    pub loaded: usize,
    /// Loads that received the weights of an earlier one.
    pub shared: usize,
}

/// Returns the number of loads in this process so far.
pub fn counts() -> Counts {
    Counts { loaded: LOADED.load(Ordering::Relaxed), shared: SHARED.load(Ordering::Relaxed) }
}

/// Returns the live model for `key`, or loads it.
pub(crate) fn get_or_load(
    key: LoadKey,
    load: impl FnOnce() -> Result<LoadedWeights>,
) -> Result<(Model, Vec<NameVariant>)> {
    let slot = slot_of(key);
    let mut shared = lock(&slot);
    let live = shared.as_ref().and_then(|shared| Some((shared.model.upgrade()?, shared.name_variants.clone())));
    if let Some((model, name_variants)) = live {
        SHARED.fetch_add(1, Ordering::Relaxed);
        return Ok((model, name_variants));
    }
    let LoadedWeights { program, weights, name_variants } = load()?;
    LOADED.fetch_add(1, Ordering::Relaxed);
    let model = Model::new(program, weights);
    *shared = Some(SharedWeights { model: model.downgrade(), name_variants: name_variants.clone() });
    Ok((model, name_variants))
}

fn slot_of(key: LoadKey) -> Slot {
    let mut table = lock(&TABLE);
    if let Some((_, slot)) = table.iter().find(|(other, _)| *other == key) {
        return slot.clone();
    }
    // If only the table holds a slot, no load is in progress; keep it only while its weights are
    // alive.
    table.retain(|(_, slot)| {
        Arc::strong_count(slot) > 1 || lock(slot).as_ref().is_some_and(|shared| shared.model.is_alive())
    });
    let slot = Slot::default();
    table.push((key, slot.clone()));
    slot
}

/// Ignores poisoning: a panic during a load leaves the slot empty, which is a valid state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
