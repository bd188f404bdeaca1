//! The pellucid command: see through a language model.
//!
//! `args/` says what can be typed, `commands/` what each command does; results go to stdout, everything said about
//! them to stderr, and the exit code is decided here and nowhere else.

mod allocator;
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

fn main() -> ExitCode {
    allocator::keep_freed_memory();
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
