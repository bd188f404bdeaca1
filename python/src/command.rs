//! The `pellucid` command inside this module, so that a wheel needs no second binary.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::path::PathBuf;

/// Runs the command with the arguments of `sys.argv` and returns its exit code. `program` starts
/// the command again. The process must end afterwards.
#[pyfunction]
pub fn run_command(py: Python<'_>, program: PathBuf, arguments: Vec<OsString>) -> PyResult<u8> {
    // Python only notes Ctrl-C, and no Python code runs that would see the note.
    let signal = py.import("signal")?;
    signal.call_method1("signal", (signal.getattr("SIGINT")?, signal.getattr("SIG_DFL")?))?;
    crate::allocator::keep_freed_memory();
    Ok(py.detach(|| pellucid_cli::main(Some(program), arguments)))
}
