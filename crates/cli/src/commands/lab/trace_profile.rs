//! `pellucid lab trace-profile`: what tracing costs from Python, measured there.

use crate::args::LabTraceProfileArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::suites::TRACE_PROFILE;
use std::io::Write;
use std::process::{Command, Stdio};

pub fn run(args: LabTraceProfileArgs) -> Result<(), Failure> {
    files::check(args.md.as_deref())?;
    files::check(args.json.as_deref())?;
    let mut command = Command::new(&args.python);
    command.arg("-").args(["--rounds", &args.rounds.to_string()]).stdin(Stdio::piped());
    for (name, path) in [("--model", &args.model), ("--md", &args.md), ("--json", &args.json)] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    let fail = |problem: String| {
        let hint = "name an interpreter that has the package: --python PYTHON, after `pip install ./python`";
        Failure::usage(format!("{}: {problem}", args.python.display()), hint)
    };
    let mut child = command.spawn().map_err(|error| fail(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(TRACE_PROFILE.as_bytes()).map_err(|error| fail(error.to_string()))?;
    }
    let status = child.wait().map_err(|error| fail(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(fail(format!("the profile ended with {status}"))) }
}
