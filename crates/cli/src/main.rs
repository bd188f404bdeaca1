//! The binary `pellucid`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(pellucid_cli::main(None, std::env::args_os().collect()))
}
