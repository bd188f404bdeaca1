//! `pellucid mcp`: the tools for coding agents, over stdin and stdout.

use super::serve::{read_template, start_logging};
use crate::args::McpArgs;
use crate::failure::Failure;
use crate::models;
use pellucid_server::{ModelEntry, ServerOptions, serve_stdio};

pub fn run(args: McpArgs) -> Result<(), Failure> {
    let template = args.chat_template.as_deref().map(read_template).transpose()?;
    start_logging(args.log);
    let mut loaded = models::load(&args.model)?.clone();
    models::say_unused_adapters(&args.model);
    if template.is_some() {
        loaded.chat = template;
    }
    let mut options = ServerOptions::default();
    let limits = &mut options.limits;
    limits.max_tokens = args.max_tokens.map_or(limits.max_tokens, |count| count as usize);
    Ok(serve_stdio(vec![ModelEntry { id: loaded.name.clone(), loaded }], options)?)
}
