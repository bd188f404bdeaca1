//! `pellucid lab trace`: what tracing costs from Python, measured there.

use crate::args::LabTraceArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::suites::TRACE_PROFILE;
use std::process::Command;

pub fn run(args: LabTraceArgs) -> Result<(), Failure> {
    files::check(args.md.as_deref())?;
    files::check(args.json.as_deref())?;
    let fail = |problem: String| {
        let hint = "name an interpreter that has the package: --python PYTHON, after `pip install ./python`";
        Failure::usage(format!("{}: {problem}", args.python.display()), hint)
    };
    // A file of its own, in a folder of its own: nnsight reads the source of what it traces, and neighbours must not stand for packages.
    let folder = tempfile::tempdir().map_err(|error| fail(error.to_string()))?;
    let program = folder.path().join("trace_profile.py");
    files::write(&program, TRACE_PROFILE.as_bytes())?;
    let mut command = Command::new(&args.python);
    command.arg(&program).args(["--rounds", &args.rounds.to_string()]);
    for (name, path) in [("--model", &args.model), ("--md", &args.md), ("--json", &args.json)] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    let mut child = command.spawn().map_err(|error| fail(error.to_string()))?;
    let status = child.wait().map_err(|error| fail(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(fail(format!("the profile ended with {status}"))) }
}
