//! What can go wrong between a path and a running model.

use crate::attempt::{self, Attempt};
use std::path::PathBuf;

/// Every failure of this crate: it names the thing, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file was read, and what it holds is not valid.
    #[error("{path}: {problem}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, where in the file.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The input is well formed, but this build cannot run it.
    #[error("{what}")]
    Unsupported {
        /// What was asked for and why it cannot be done.
        what: String,
        /// What to do instead.
        remedy: String,
    },
    /// The caller asked for something that does not exist (a name, a token, an option).
    #[error("{problem}")]
    Usage {
        /// What is wrong with the request.
        problem: String,
        /// What to ask for instead.
        remedy: String,
    },
    /// A model was not loaded: why, and what became of each way to load it.
    #[error("{error}{}", attempt::list(&error.to_string(), attempts))]
    Load {
        /// Why.
        error: Box<Error>,
        /// The ways, in their order.
        attempts: Vec<Attempt>,
    },
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] pellucid_engine::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Io`] that remembers its file.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(path: impl Into<PathBuf>, problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Invalid { path: path.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Unsupported { what: what.into(), remedy: remedy.into() }
    }

    /// An [`Error::Usage`].
    pub fn usage(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Usage { problem: problem.into(), remedy: remedy.into() }
    }

    /// What the user can do about it, where there is more to say than the message.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Error::Io { .. } => None,
            Error::Invalid { remedy, .. } | Error::Unsupported { remedy, .. } | Error::Usage { remedy, .. } => {
                Some(remedy)
            }
            Error::Load { error, .. } => error.remedy(),
            Error::Engine(error) => error.remedy(),
        }
    }

    /// [`cause`](Self::cause), by value.
    pub(crate) fn into_cause(self) -> Error {
        match self {
            Error::Load { error, .. } => error.into_cause(),
            error => error,
        }
    }

    /// What went wrong, without the ways of loading that were tried.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Load { error, .. } => error.cause(),
            error => error,
        }
    }
}
