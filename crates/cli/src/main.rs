//! The pellucid command: see through a language model.
//!
//! `args.rs` says what can be typed, `commands/` what each command does; results go to stdout, everything said about
//! them to stderr, and the exit code is decided here and nowhere else.

mod args;
mod commands;
mod failure;
mod files;
mod inputs;
mod models;
mod progress;

use args::{Arguments, Command};
use clap::Parser;
use failure::Failure;
use pellucid_kernels::simd::InstructionSet;
use std::io::Write;
use std::process::ExitCode;

/// The system's allocator, which a worker of the lab can ask to count.
#[global_allocator]
static ALLOCATOR: pellucid_lab::counting::Counting = pellucid_lab::counting::Counting;

fn main() -> ExitCode {
    keep_freed_memory();
    let arguments = Arguments::parse();
    let outcome = std::panic::catch_unwind(|| run(arguments));
    let failure = match outcome {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::internal(
            "the program met a state that it believed impossible (see above); please report it with the command and the model",
        ),
    };
    // If stderr is closed there is nobody left to tell; the code still says it.
    let _ = writeln!(std::io::stderr(), "{failure}");
    ExitCode::from(failure.code())
}

/// Activations are large and short-lived. The system's allocator would give their memory back after each run and fault every page in
/// again at the next, which costs more than the captures themselves.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: called before any other thread exists; both settings only say when memory goes back to the system.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
    }
}

/// A set of instructions that nobody knows would be passed over where it is read.
fn check_instructions() -> Result<(), Failure> {
    match std::env::var("PELLUCID_ISA") {
        Ok(wanted) if InstructionSet::ALL.iter().all(|set| set.name() != wanted) => {
            let names = InstructionSet::ALL.map(InstructionSet::name).join(", ");
            Err(Failure::usage(
                format!("PELLUCID_ISA is `{wanted}`, which is no set of instructions"),
                format!("one of {names}"),
            ))
        }
        _ => Ok(()),
    }
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    check_instructions()?;
    if let Some(file) = &arguments.architectures {
        pellucid_models::families::register_file(file)?;
    }
    match arguments.command {
        Command::Inspect(inspect) => commands::inspect::run(inspect),
        Command::Sites(sites) => commands::sites::run(sites),
        Command::Run(run) => commands::run::run(run),
        Command::Generate(generate) => commands::generate::run(generate),
        Command::Lens(lens) => commands::lens::run(lens),
        Command::Pull(pull) => commands::pull::run(pull),
        Command::Profile(profile) => commands::profile::run(profile),
        Command::Lab(lab) => commands::lab::run(lab),
    }
}
