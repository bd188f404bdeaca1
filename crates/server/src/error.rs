//! Errors of starting a server. Errors of requests are `ApiError`s.

use std::net::SocketAddr;

/// Why a server could not start or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The OS error.
        source: std::io::Error,
    },
    /// The address is reachable from other machines, and there is no token.
    #[error("{address} is reachable from other machines, and there is no token")]
    NeedsToken {
        /// The address.
        address: SocketAddr,
    },
    /// An invalid option.
    #[error("{problem}")]
    Options {
        /// The problem.
        problem: String,
        /// What to change.
        remedy: String,
    },
    /// The runtime could not start.
    #[error("the server's threads did not start: {0}")]
    Runtime(std::io::Error),
    /// The files of a model do not load.
    #[error(transparent)]
    Model(Box<pellucid_models::Error>),
    /// The client at stdin does not speak the protocol.
    #[error("the client at stdin does not speak MCP: {0}")]
    Protocol(String),
    /// A scheduler could not start.
    #[error(transparent)]
    Engine(#[from] pellucid_engine::Error),
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns what the user can do about it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Error::Bind { .. } => {
                Some("choose another port with --addr 127.0.0.1:PORT; port 0 takes a free one".into())
            }
            Error::NeedsToken { .. } => {
                Some("give --token-file F, or listen on 127.0.0.1 and reach it from elsewhere with `ssh -L`".into())
            }
            Error::Options { remedy, .. } => Some(remedy.clone()),
            Error::Runtime(_) => Some("free memory or raise the limit of processes".into()),
            Error::Model(error) => error.remedy().map(crate::hints::word),
            Error::Protocol(_) => {
                Some("`pellucid mcp` is started by an agent; `pellucid mcp --help` shows its config".into())
            }
            Error::Engine(error) => error.remedy().map(crate::hints::word),
        }
    }
}
