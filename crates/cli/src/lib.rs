//! The `pellucid` command: see through a language model.
//!
//! It is a library because two programs run it: the binary `pellucid` (`main.rs`) and the script
//! `pellucid` of the Python package. `args/` defines the arguments, `commands/` runs them. Results
//! go to stdout, everything else to stderr. `Failure` carries a failed command's exit code, which
//! [`main`] returns. Two places exit directly: `failure::output` (0 when stdout is a closed pipe)
//! and `commands::lab::exit_with` (the code of a verdict).

mod allocator;
mod args;
mod commands;
mod failure;
mod files;
mod hints;
mod inputs;
mod interrupt;
mod models;
mod progress;
mod remote;

use args::{Arguments, Command};
use clap::Parser;
use failure::Failure;
use pellucid_kernels::simd::InstructionSet;
use pellucid_models::escape::for_terminal;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The program that runs this command, which `pellucid lab` starts for its measurements.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Runs the command with these arguments, the program's name first, and returns its exit code.
/// `program` starts the command again; by default it is this process's executable. Called once, by
/// a process that does nothing else.
pub fn main(program: Option<PathBuf>, arguments: Vec<OsString>) -> u8 {
    allocator::keep_freed_memory();
    interrupt::ignore_file_size_signal();
    if let Some(program) = program {
        // The first call decides.
        let _ = PROGRAM.set(program);
    }
    let arguments = Arguments::parse_from(arguments);
    let outcome = std::panic::catch_unwind(|| run(arguments));
    let failure = match outcome {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::internal("internal error (see above); please report it with the command and the model"),
    };
    // Messages quote names from files and plans, which may contain escape sequences.
    let message = for_terminal(&failure.to_string()).into_owned();
    // stderr may be closed; the exit code still reports the failure.
    let _ = writeln!(std::io::stderr(), "{message}");
    failure.code()
}

/// Returns the program that runs this command.
fn own_program() -> Result<PathBuf, Failure> {
    match PROGRAM.get() {
        Some(program) => Ok(program.clone()),
        None => std::env::current_exe().map_err(|error| Failure::internal(error.to_string())),
    }
}

/// Rejects an unknown `PELLUCID_ISA`, which `instruction_set()` would silently ignore.
fn check_instructions() -> Result<(), Failure> {
    match std::env::var("PELLUCID_ISA") {
        Ok(wanted) if InstructionSet::ALL.iter().all(|set| set.name() != wanted) => {
            let names = InstructionSet::ALL.map(InstructionSet::name).join(", ");
            Err(Failure::usage(
                format!("unknown instruction set `{wanted}` in PELLUCID_ISA"),
                format!("use one of {names}"),
            ))
        }
        _ => Ok(()),
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    check_instructions()?;
    if let Some(limit) = arguments.memory_limit {
        pellucid_engine::set_memory_limit(limit);
    }
    if let Some(file) = &arguments.architectures {
        pellucid_models::families::register_file(file)?;
    }
    match arguments.command {
        Command::Inspect(inspect) => commands::inspect::run(inspect),
        Command::Sites(sites) => commands::sites::run(sites),
        Command::Run(run) => commands::run::run(run),
        Command::Tokens(tokens) => commands::tokens::run(tokens),
        Command::Generate(generate) => commands::generate::run(generate),
        Command::Serve(serve) => commands::serve::run(serve),
        Command::Mcp(mcp) => commands::mcp::run(mcp),
        Command::Lens(lens) => commands::lens::run(lens),
        Command::Steer(steer) => commands::steer::run(steer),
        Command::Eval(eval) => commands::eval::run(eval),
        Command::Sae(sae) => commands::sae::run(sae),
        Command::Analyze(analyze) => commands::analyze::run(analyze),
        Command::Store(store) => commands::store::run(store),
        Command::Replay(replay) => commands::store::replay(replay),
        Command::Pull(pull) => commands::pull::run(pull),
        Command::Profile(profile) => commands::profile::run(profile),
        Command::Lab(lab) => commands::lab::run(lab),
    }
}
