//! Calls to a server: their errors as exceptions of the package.

use crate::errors::{ErrorKind, error, from_models, guarded, raised};
use pellucid_client::{Error, Result};
use pyo3::prelude::*;

/// Converts an error of a call to a server.
pub fn from_client(py: Python<'_>, fault: &Error) -> PyErr {
    match fault {
        Error::Call(fault) => from_models(py, fault),
        Error::Usage { problem, hint } => error(py, ErrorKind::Input, problem, Some(hint)),
        Error::Server { problem, hint } => error(py, ErrorKind::Server, problem, Some(hint)),
    }
}

/// Runs `work`, which may call a server, with the GIL released. An exception raised by Python code
/// during the call takes precedence over its error.
pub fn run_remote<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let outcome = guarded(py, work)?;
    match raised::take() {
        Some(exception) => Err(exception),
        None => outcome.map_err(|fault| from_client(py, &fault)),
    }
}
