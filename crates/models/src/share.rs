//! Weights that several loads share.
//!
//! Whoever loads files that somebody in this process has loaded and still uses gets the same weights; whoever comes while they are
//! being loaded waits for them. The table holds no weights itself: with the last user they go. A file that has changed since is
//! another file.

use crate::error::{Error, Result};
use crate::load::{Loaded, Storage};
use crate::repair::Repair;
use pellucid_engine::{Model, WeakModel};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

/// What makes two loads the same.
#[derive(PartialEq, Eq)]
pub(crate) struct Key {
    /// The model, then its adapters in their order.
    places: Vec<Place>,
    storage: Storage,
    /// The family that it is read as: a type may be mapped to another one between two loads.
    family: String,
}

/// A directory or file, with what tells whether its contents are still the same.
#[derive(PartialEq, Eq)]
struct Place {
    path: PathBuf,
    files: Vec<FileState>,
}

#[derive(PartialEq, Eq)]
struct FileState {
    name: OsString,
    len: u64,
    modified: Option<SystemTime>,
    /// Device and number on it, where the system has such.
    number: Option<(u64, u64)>,
}

impl Key {
    /// The key of a model at a path, or (where there is none) inside this program.
    pub(crate) fn new(path: Option<&Path>, adapters: &[PathBuf], storage: Storage, family: &str) -> Result<Key> {
        let paths = path.into_iter().chain(adapters.iter().map(PathBuf::as_path));
        let places = paths.map(Place::look).collect::<Result<_>>()?;
        Ok(Key { places, storage, family: family.to_owned() })
    }
}

impl Place {
    fn look(path: &Path) -> Result<Place> {
        let path = path.canonicalize().map_err(Error::io(path))?;
        if path.is_file() {
            let state = FileState::of(OsString::new(), &path).ok_or_else(|| gone(&path))?;
            return Ok(Place { path, files: vec![state] });
        }
        let entries = std::fs::read_dir(&path).map_err(Error::io(&path))?;
        let matters = entries.flatten().filter(|entry| decides(&entry.file_name().to_string_lossy()));
        let mut files: Vec<FileState> =
            matters.filter_map(|entry| FileState::of(entry.file_name(), &entry.path())).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Place { path, files })
    }
}

/// Whether weights depend on a file of this name: they do not on tokenizers, cards and code.
fn decides(name: &str) -> bool {
    let ends = |end: &&str| name.ends_with(end);
    [".safetensors", ".bin", ".pt", ".pth", ".gguf", "config.json", ".index.json"].iter().any(ends)
}

fn gone(path: &Path) -> Error {
    Error::usage(format!("{} disappeared while loading", path.display()), "load the model again")
}

impl FileState {
    fn of(name: OsString, path: &Path) -> Option<FileState> {
        let found = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let number = {
            use std::os::unix::fs::MetadataExt;
            Some((found.dev(), found.ino()))
        };
        #[cfg(not(unix))]
        let number = None;
        Some(FileState { name, len: found.len(), modified: found.modified().ok(), number })
    }
}

/// Weights that somebody has loaded.
struct Kept {
    model: WeakModel,
    repairs: Vec<Repair>,
}

/// Held by the one that loads, so that the others wait.
type Slot = Arc<Mutex<Option<Kept>>>;

static TABLE: Mutex<Vec<(Key, Slot)>> = Mutex::new(Vec::new());
static LOADED: AtomicUsize = AtomicUsize::new(0);
static SHARED: AtomicUsize = AtomicUsize::new(0);

/// What has been loaded in this process so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// How often weights were mapped and packed.
    pub loaded: usize,
    /// How often a load got the weights of an earlier one.
    pub shared: usize,
}

/// What has been loaded in this process so far.
pub fn counts() -> Counts {
    Counts { loaded: LOADED.load(Ordering::Relaxed), shared: SHARED.load(Ordering::Relaxed) }
}

/// The model of a key: that of somebody who has it, or loaded now.
pub(crate) fn model(key: Key, load: impl FnOnce() -> Result<Loaded>) -> Result<(Model, Vec<Repair>)> {
    let slot = slot_of(key);
    let mut kept = lock(&slot);
    if let Some((model, repairs)) = kept.as_ref().and_then(|kept| Some((kept.model.upgrade()?, kept.repairs.clone()))) {
        SHARED.fetch_add(1, Ordering::Relaxed);
        return Ok((model, repairs));
    }
    let Loaded { program, weights, repairs } = load()?;
    LOADED.fetch_add(1, Ordering::Relaxed);
    let model = Model::new(program, weights);
    *kept = Some(Kept { model: model.downgrade(), repairs: repairs.clone() });
    Ok((model, repairs))
}

fn slot_of(key: Key) -> Slot {
    let mut table = lock(&TABLE);
    if let Some((_, slot)) = table.iter().find(|(other, _)| *other == key) {
        return slot.clone();
    }
    // A slot that only the table has is of nobody who loads; whether somebody uses its weights, it tells itself.
    table.retain(|(_, slot)| {
        Arc::strong_count(slot) > 1 || lock(slot).as_ref().is_some_and(|kept| kept.model.is_alive())
    });
    let slot = Slot::default();
    table.push((key, slot.clone()));
    slot
}

/// A panic while somebody loaded leaves nothing half done behind: the slot is empty.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
