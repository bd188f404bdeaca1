//! `pellucid lab tracing-cost`: the cost of tracing from Python, measured by a Python program.

use crate::args::LabTracingCostArgs;
use crate::failure::Failure;
use crate::files;
use pellucid_lab::builtin_suites::TRACING_COST;
use pellucid_models::python;

pub fn run(args: LabTracingCostArgs) -> Result<(), Failure> {
    files::check(args.md.as_deref())?;
    files::check(args.json.as_deref())?;
    let fail = |problem: String| {
        let hint = "give an interpreter that has the package: --python PYTHON, after `pip install ./python`";
        Failure::usage(format!("{}: {problem}", args.python.display()), hint)
    };
    // The program is written to its own directory: nnsight reads the source of traced code, and
    // neighboring files could shadow packages on `sys.path`.
    let folder = tempfile::tempdir().map_err(|error| fail(error.to_string()))?;
    let program = folder.path().join("tracing_cost.py");
    files::write(&program, TRACING_COST.as_bytes())?;
    let mut command = python::file_command(&args.python, &program);
    command.args(["--rounds", &args.rounds.to_string()]);
    for (name, path) in [("--model", &args.model), ("--md", &args.md), ("--json", &args.json)] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    let mut child = command.spawn().map_err(|error| fail(error.to_string()))?;
    let status = child.wait().map_err(|error| fail(error.to_string()))?;
    if status.success() { Ok(()) } else { Err(fail(format!("the profile ended with {status}"))) }
}
