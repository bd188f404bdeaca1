//! `pellucid serve`: the HTTP server.

use super::{print, say};
use crate::args::{LogArg, ServeArgs};
use crate::failure::Failure;
use crate::models;
use pellucid_models::chat::ChatTemplate;
use pellucid_server::{LogFormat, ModelEntry, Server, ServerOptions};
use std::io::Write;
use std::path::Path;

pub fn run(args: ServeArgs) -> Result<(), Failure> {
    // Everything that can be wrong is checked before models are loaded.
    let mut options = ServerOptions {
        address: args.addr,
        token: args.token_file.as_deref().map(read_token).transpose()?,
        allowed_hosts: args.allow_host.clone(),
        aliases: args.alias.clone(),
        ..ServerOptions::default()
    };
    options.check()?;
    options.scheduler = args.scheduler.options(options.scheduler);
    let limits = &mut options.limits;
    limits.max_tokens = args.limits.max_tokens.map_or(limits.max_tokens, |count| count as usize);
    limits.body_bytes = args.limits.body_bytes.unwrap_or(limits.body_bytes);
    limits.connections = args.limits.connections.map_or(limits.connections, |count| count as usize);
    limits.stored_bytes = args.limits.stored_bytes.unwrap_or(limits.stored_bytes);
    limits.capture_bytes = args.scheduler.capture_bytes.unwrap_or(limits.capture_bytes);
    options.scheduler.queue = args.limits.queue.map_or(options.scheduler.queue, |count| count as usize);
    let template = args.chat_template.as_deref().map(read_template).transpose()?;
    let mut entries = Vec::new();
    for model in args.models() {
        let mut loaded = models::load(&model)?.clone();
        if template.is_some() {
            loaded.chat.clone_from(&template);
        }
        entries.push(ModelEntry { id: loaded.name.clone(), loaded });
    }
    let names: Vec<String> = entries.iter().map(|entry| entry.id.clone()).collect();
    start_logging(args.log);
    let server = Server::bind(entries, options)?;
    print(&format!("http://{}/v1\n", server.address()))?;
    // A program that waits for the line reads it now.
    std::io::stdout().flush().map_err(crate::failure::output)?;
    say(&format!("serving {}; Ctrl-C stops", names.join(", ")));
    Ok(server.run()?)
}

/// Reads the token of a file: its first line.
fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --token-file"))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Starts the log on stderr.
pub fn start_logging(form: LogArg) {
    pellucid_server::start_logging(match form {
        LogArg::Text => LogFormat::Text,
        LogArg::Json => LogFormat::Json,
    });
}

/// Reads a chat template.
pub fn read_template(path: &Path) -> Result<ChatTemplate, Failure> {
    let source = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display()), "check --chat-template"))?;
    Ok(ChatTemplate::new(&source, path))
}

impl From<pellucid_server::Error> for Failure {
    fn from(error: pellucid_server::Error) -> Failure {
        let hint = error.remedy().unwrap_or_default();
        Failure::usage(error.to_string(), hint)
    }
}
