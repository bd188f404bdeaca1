//! Arguments of commands that can run on a server.

use clap::Args;
use std::path::PathBuf;

/// A server that runs the model.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "On a server")]
pub struct ServerArgs {
    /// Run on a server that `pellucid serve` started, such as http://127.0.0.1:7117. The output is
    /// that of a local run; --model is then the name of one of its models [default: its first]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// File with the bearer token of the server [default: PELLUCID_TOKEN]
    #[arg(long, value_name = "F", requires = "server")]
    pub token_file: Option<PathBuf>,
}
