//! The binary `pellucid-lab-worker`: where it is, and what it can be asked.
//!
//! It installs the [`counting`](crate::counting) allocator and serves downloads from a local hub, so that the product's binary contains
//! neither. It reads one JSON request from stdin and writes one JSON answer to stdout.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the binary.
pub const NAME: &str = "pellucid-lab-worker";

/// What the worker can be asked, as its one argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A [`Request`](crate::protocol::Request): counts the allocations of one run.
    CountAllocations,
    /// [`Settings`](crate::identify::result::Settings): runs the suite `identify`.
    Identify,
}

impl Task {
    const ALL: [(Task, &str); 2] = [(Task::CountAllocations, "count-allocations"), (Task::Identify, "identify")];

    /// The task of an argument.
    pub fn from_name(name: &str) -> Option<Task> {
        Task::ALL.iter().find(|(_, known)| *known == name).map(|(task, _)| *task)
    }

    /// The command that starts a worker with this task.
    pub fn command(self, worker: &Path) -> Command {
        let mut command = Command::new(worker);
        command.args(Task::ALL.iter().filter(|(task, _)| *task == self).map(|(_, name)| name));
        command
    }
}

/// The worker beside an executable of ours.
///
/// # Errors
/// If there is none.
pub fn beside(executable: &Path) -> Result<PathBuf> {
    let path = executable.with_file_name(format!("{NAME}{}", std::env::consts::EXE_SUFFIX));
    if path.is_file() { Ok(path) } else { Err(Error::NoWorker { path }) }
}
