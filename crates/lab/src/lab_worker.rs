//! The binary `pellucid-lab-worker`: its path and its tasks.
//!
//! It installs the [`counting`](crate::counting) allocator and serves downloads from a local hub,
//! so that the product binary contains neither. It reads one JSON request from stdin and writes one
//! JSON answer to stdout.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the binary.
pub const NAME: &str = "pellucid-lab-worker";

/// The worker's task, given as its only argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Counts the allocations of one run. The request is a [`Request`](crate::protocol::Request).
    CountAllocations,
    /// Runs the suite `identify`. The request is
    /// [`IdentifySettings`](crate::identify::result::IdentifySettings).
    Identify,
}

impl Task {
    const ALL: [(Task, &str); 2] = [(Task::CountAllocations, "count-allocations"), (Task::Identify, "identify")];

    /// Returns the task of an argument.
    pub fn from_name(name: &str) -> Option<Task> {
        Task::ALL.iter().find(|(_, known)| *known == name).map(|(task, _)| *task)
    }

    /// Returns the command that starts `worker` with this task.
    pub fn command(self, worker: &Path) -> Command {
        let mut command = Command::new(worker);
        command.args(Task::ALL.iter().filter(|(task, _)| *task == self).map(|(_, name)| name));
        command
    }
}

/// Returns the worker in the directory of a Pellucid executable.
///
/// # Errors If it is missing.
pub fn find_worker(executable: &Path) -> Result<PathBuf> {
    let path = executable.with_file_name(format!("{NAME}{}", std::env::consts::EXE_SUFFIX));
    if path.is_file() { Ok(path) } else { Err(Error::NoWorker { path }) }
}
