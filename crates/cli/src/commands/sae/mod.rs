//! `pellucid sae`: sparse autoencoders and transcoders.

mod inspect;

use crate::args::SaeCommand;
use crate::failure::Failure;

pub fn run(command: SaeCommand) -> Result<(), Failure> {
    match command {
        SaeCommand::Inspect(args) => inspect::run(args),
    }
}
