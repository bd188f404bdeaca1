//! The error type of this crate.

use crate::attempt::{self, Attempt};
use pellucid_engine::Remedy;
use std::path::PathBuf;

/// An error: what is wrong, where, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The OS error.
        source: std::io::Error,
    },
    /// The contents of a file are not valid.
    #[error("{path}: {problem}", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem, and its position in the file.
        problem: String,
        /// The remedy.
        remedy: Remedy,
    },
    /// The input is well formed, but this build cannot run it.
    #[error("{what}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
        /// The alternative.
        remedy: Remedy,
    },
    /// The caller's request is invalid: an unknown name, token or option.
    #[error("{problem}")]
    Usage {
        /// The problem with the request.
        problem: String,
        /// A valid request.
        remedy: Remedy,
    },
    /// A model could not be loaded; lists the outcome of each strategy.
    #[error("{error}{}", attempt::list(&error.to_string(), attempts))]
    Load {
        /// The error of the strategy that applies.
        error: Box<Error>,
        /// The strategies in their order, each with its outcome.
        attempts: Vec<Attempt>,
    },
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] pellucid_engine::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns a function that makes an [`Error::Io`] about `path`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, source }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(path: impl Into<PathBuf>, problem: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
        Error::Invalid { path: path.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(what: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
        Error::Unsupported { what: what.into(), remedy: remedy.into() }
    }

    /// An [`Error::Usage`].
    pub fn usage(problem: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
        Error::Usage { problem: problem.into(), remedy: remedy.into() }
    }

    /// The remedy, if the error has one.
    pub fn remedy(&self) -> Option<&Remedy> {
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

    /// The error itself, without the list of strategies of [`Error::Load`].
    pub fn cause(&self) -> &Error {
        match self {
            Error::Load { error, .. } => error.cause(),
            error => error,
        }
    }
}
