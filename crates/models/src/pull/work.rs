//! Work directories of pulls: `models/.pull/NAME`, with a lock beside each.
//!
//! A pull holds the lock of its model, so a second pull of the same model waits and then finds the
//! finished one. The kernel releases the lock when the process ends, however it ends. So the next
//! pull, of any model, knows which directories have no owner, and removes them.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Progress, Sources, io_error};
use crate::{Error, Result};

const LOCK_SUFFIX: &str = "+lock";
/// How often a locked model is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the finished files of an interrupted hub download are kept, for the next attempt.
const KEEP_RESUMABLE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A directory that only this pull uses.
pub(super) struct WorkDir {
    path: PathBuf,
    is_resumable: bool,
    /// Locked until it is dropped.
    _lock: File,
}

impl WorkDir {
    /// Waits for other pulls of the model `name` and opens its work directory. A resumable one
    /// keeps the files of an interrupted pull.
    pub fn open(
        models: &Path,
        name: &str,
        is_resumable: bool,
        sources: &Sources,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<WorkDir> {
        let parent = models.join(".pull");
        fs::create_dir_all(&parent).map_err(io_error(&parent, 0))?;
        // `+` occurs in no model name, so neither names nor locks collide.
        let name = name.replace('/', "+");
        let lock_path = parent.join(format!("{name}{LOCK_SUFFIX}"));
        let lock = File::create(&lock_path).map_err(io_error(&lock_path, 0))?;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    sources.check_interrupt()?;
                    progress(Progress::Waiting);
                    std::thread::sleep(POLL_INTERVAL);
                }
                Err(TryLockError::Error(error)) => return Err(Error::io(lock_path)(error)),
            }
        }
        let path = parent.join(&name);
        if !is_resumable {
            remove(&path)?;
        }
        sweep(&parent, &name);
        fs::create_dir_all(&path).map_err(io_error(&path, 0))?;
        Ok(WorkDir { path, is_resumable, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Deletes the directory of a finished pull.
    pub fn remove(self) -> Result<()> {
        remove(&self.path)
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // A failed pull leaves nothing but files that the next attempt uses.
        let _ = if self.is_resumable {
            fs::remove_dir(&self.path).map_err(Error::io(&self.path))
        } else {
            remove(&self.path)
        };
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Removes the work directories of pulls that ended without doing so. Best effort: a failure is
/// not this pull's.
fn sweep(parent: &Path, own: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name == own || name.ends_with(LOCK_SUFFIX) {
            continue;
        }
        let is_recent = || {
            let changed = entry.metadata().and_then(|found| found.modified()).ok();
            changed.and_then(|time| time.elapsed().ok()).is_none_or(|age| age < KEEP_RESUMABLE)
        };
        // Only hub ids have a slash, here a `+`; only their downloads are resumed.
        if name.contains('+') && is_recent() {
            continue;
        }
        if let Ok(lock) = File::create(parent.join(format!("{name}{LOCK_SUFFIX}")))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
