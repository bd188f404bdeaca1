//! `pellucid serve`: the HTTP server.

use super::{print, say};
use crate::args::{LogArg, ServeArgs, ServedAdapter};
use crate::failure::Failure;
use crate::models;
use crate::progress::DelayedProgressBar;
use crate::remote::read_token;
use pellucid_models::builtin;
use pellucid_models::chat::ChatTemplate;
use pellucid_server::{LogFormat, ModelFiles, Server, ServerOptions};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;

pub fn run(args: ServeArgs) -> Result<(), Failure> {
    // Everything that can be wrong is checked before models are loaded.
    let mut options = ServerOptions {
        address: args.addr,
        token: args.token_file.as_deref().map(read_token).transpose()?,
        allowed_hosts: args.allow_host.clone(),
        aliases: args.alias.clone(),
        model_memory: args.model_memory,
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
    let files = model_files(&args, template.as_ref())?;
    let names: Vec<String> = files.iter().map(|files| files.id.clone()).collect();
    start_logging(args.log);
    let server = Server::bind(files, options)?;
    if !args.no_preload {
        let bar = DelayedProgressBar::new("loading weights");
        server.preload(&mut |fraction| bar.set(fraction))?;
        bar.finish();
    }
    print(&format!("http://{}/v1\n", server.address()))?;
    // A program that waits for the line reads it now.
    std::io::stdout().flush().map_err(crate::failure::output)?;
    say(&format!("serving {}; Ctrl-C stops", names.join(", ")));
    Ok(server.run()?)
}

/// The files of each model with its adapters.
fn model_files(args: &ServeArgs, chat: Option<&ChatTemplate>) -> Result<Vec<ModelFiles>, Failure> {
    let mut all: Vec<ModelFiles> = Vec::new();
    for model in args.models() {
        let path = models::locate_model(&model)?;
        // All models share one pool of threads.
        let options = all.first().map_or_else(|| models::load_options(&model), |first| first.options.clone());
        let id = id_of(model.model.as_deref(), path.as_deref());
        all.push(ModelFiles { id, path, options, saes: model.sae, adapters: Vec::new(), chat: chat.cloned() });
    }
    for ServedAdapter { model, name, directory } in &args.adapter {
        let index = model.as_ref().map_or(Some(0), |id| all.iter().position(|files| files.id == *id));
        let Some(index) = index else {
            let ids: Vec<&str> = all.iter().map(|files| files.id.as_str()).collect();
            let problem = format!("the adapter {name} is for {}, which is not served", model.as_deref().unwrap_or(""));
            return Err(Failure::usage(problem, format!("the models are {}", ids.join(", "))));
        };
        all[index].adapters.push((name.clone(), directory.clone()));
    }
    Ok(all)
}

/// The name of a model in requests: as it was pulled, or the last component of its path.
fn id_of(name: Option<&OsStr>, path: Option<&Path>) -> String {
    let name = name.unwrap_or(OsStr::new(builtin::NAME));
    let in_words = |name: &OsStr| name.to_string_lossy().into_owned();
    let Some(path) = path.filter(|_| Path::new(name).exists()) else { return in_words(name) };
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    in_words(path.file_name().or(whole.file_name()).unwrap_or(name))
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
        match error {
            pellucid_server::Error::Model(error) => Failure::from(*error),
            error => Failure::usage(error.to_string(), hint),
        }
    }
}
