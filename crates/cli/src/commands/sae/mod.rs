//! `pellucid sae`: sparse autoencoders and transcoders.

mod analyses;
mod inspect;

use crate::args::SaeCommand;
use crate::failure::Failure;

pub fn run(command: SaeCommand) -> Result<(), Failure> {
    match command {
        SaeCommand::Inspect(args) => inspect::run(args),
        SaeCommand::Eval(args) => analyses::eval(args),
        SaeCommand::Features(args) => analyses::features(args),
        SaeCommand::Top(args) => analyses::top(args),
    }
}
