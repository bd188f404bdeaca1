//! Errors of the engine. Checks run before any computation if possible.

use crate::memory_limit::{AllowedMemory, format_bytes};
use crate::remedy::Remedy;
use std::sync::LazyLock;

/// Errors of this crate: each names the cause and where it occurred, and has a remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A site, point or pattern that does not exist in this program.
    #[error("{problem}")]
    Site {
        /// The request, and why it does not exist.
        problem: String,
        /// The nearest existing site, or where to find one.
        remedy: Remedy,
    },
    /// An invalid tap of a plan.
    #[error("tap {tap} on `{site}`: {problem}")]
    Plan {
        /// Index of the tap in the plan.
        tap: usize,
        /// Site as written in the plan.
        site: String,
        /// The problem.
        problem: String,
        /// What to change.
        remedy: Remedy,
    },
    /// An invalid value of a plan.
    #[error("{value}: {problem}")]
    Value {
        /// Name or id of the value.
        value: String,
        /// The problem.
        problem: String,
        /// What to change.
        remedy: Remedy,
    },
    /// Several problems of one plan.
    #[error("{}", list_problems(.0))]
    Several(Vec<Error>),
    /// Invalid input or options of a call.
    #[error("{problem}")]
    Input {
        /// The problem, with the row if it concerns one.
        problem: String,
        /// What to change.
        remedy: Remedy,
    },
    /// The caller's [`Interrupt`](crate::Interrupt) stopped the call.
    #[error("the call was interrupted")]
    Interrupted,
    /// The queue of a [`Scheduler`](crate::Scheduler) is full.
    #[error("the queue is full: {waiting} requests wait")]
    Busy {
        /// Requests in the queue.
        waiting: usize,
    },
    /// A call that would need more memory than it may take. Nothing was allocated.
    #[error("{purpose} needs {}; {allowed}", format_bytes(*.needed))]
    Memory {
        /// The call.
        purpose: String,
        /// Predicted bytes.
        needed: usize,
        /// The bytes that it may take.
        allowed: AllowedMemory,
    },
    /// A fault of the engine itself.
    #[error("internal error: {0}")]
    Internal(String),
    /// An architecture whose sizes contradict each other.
    #[error("invalid architecture: {problem}")]
    Architecture {
        /// The contradiction.
        problem: String,
    },
}

/// Number of problems of one plan that an error lists. Suggestions for a wrong name take a
/// millisecond, so that thousands of wrong names would take minutes.
pub(crate) const MAX_PROBLEMS: usize = 20;

fn list_problems(errors: &[Error]) -> String {
    let lines: Vec<String> = errors.iter().map(|error| format!("- {error}")).collect();
    let count = match errors.len() {
        MAX_PROBLEMS.. => format!("the first {} problems", errors.len()),
        count => format!("{count} problems"),
    };
    format!("{count}:\n{}", lines.join("\n"))
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns what the user can do about it.
    pub fn remedy(&self) -> Option<&Remedy> {
        static CORRECT_CONFIG: LazyLock<Remedy> = LazyLock::new(|| "correct config.json, or download it again".into());
        static SUBMIT_LATER: LazyLock<Remedy> =
            LazyLock::new(|| "submit the request again when others have ended, or raise the queue limit".into());
        match self {
            Error::Site { remedy, .. }
            | Error::Plan { remedy, .. }
            | Error::Value { remedy, .. }
            | Error::Input { remedy, .. } => Some(remedy),
            Error::Interrupted | Error::Internal(_) => None,
            Error::Memory { .. } => Some(&Remedy::RaiseMemoryLimit),
            Error::Busy { .. } => Some(&SUBMIT_LATER),
            Error::Several(all) => all.first().and_then(Error::remedy),
            Error::Architecture { .. } => Some(&CORRECT_CONFIG),
        }
    }

    /// Combines errors into [`Error::Several`]; a single error is returned unchanged.
    pub(crate) fn all(mut errors: Vec<Error>) -> Error {
        if errors.len() == 1 { errors.remove(0) } else { Error::Several(errors) }
    }

    /// Returns an [`Error::Input`].
    pub fn input(problem: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
        Error::Input { problem: problem.into(), remedy: remedy.into() }
    }

    /// Returns an [`Error::Site`].
    pub fn site(problem: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
        Error::Site { problem: problem.into(), remedy: remedy.into() }
    }
}
