//! Errors of remote calls.

use pellucid_models::Error as ModelsError;

/// Errors of remote calls. Errors that the call would also have on this machine are
/// [`Error::Call`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the plan, the input or the engine, as a local call reports it.
    #[error(transparent)]
    Call(#[from] ModelsError),
    /// A wrong URL or option.
    #[error("{problem}")]
    Usage {
        /// The problem.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The server cannot be reached, refuses the client, or does not speak this protocol.
    #[error("{problem}")]
    Server {
        /// The problem, with the URL.
        problem: String,
        /// What to do.
        hint: String,
    },
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an [`Error::Server`].
    pub(crate) fn server(problem: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::Server { problem: problem.into(), hint: hint.into() }
    }
}

impl From<pellucid_engine::Error> for Error {
    fn from(error: pellucid_engine::Error) -> Error {
        Error::Call(error.into())
    }
}
