//! Arguments of `mcp`.

use super::{LogArg, ModelArgs};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
#[command(
    after_help = "An agent starts this command and talks to it over stdin and stdout. Add it to the agent's config:\n\n  \
  {\"mcpServers\": {\"pellucid\": {\"command\": \"pellucid\", \"args\": [\"mcp\", \"--model\", \"smollm2-135m\"]}}}\n\n\
The tools: describe, sites, run, explain, generate, lens, sweep. They read and change any activation; they read and \
write no files. Without --model they use the small model inside the binary. stdout carries the protocol only, logs go \
to stderr. The process ends when stdin is closed. `pellucid serve` offers the same tools over HTTP at /mcp. docs/mcp.md \
describes the tools."
)]
pub struct McpArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Jinja chat template to use instead of the model's own
    #[arg(long, value_name = "F.jinja")]
    pub chat_template: Option<PathBuf>,
    /// Most new tokens of a continuation [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    pub log: LogArg,
}
