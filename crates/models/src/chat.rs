//! Chat templates: render messages to the text that a chat model was trained on.
//!
//! Templates are Jinja programs written for Python, so the environment is set up as in
//! transformers: `trim_blocks` and `lstrip_blocks`, Python's methods on strings and maps,
//! `raise_exception`, `strftime_now`, and a `tojson` that writes like `json.dumps`. A template
//! comes with the model and is untrusted: it can only compute a string, with limits on its length
//! and operator chains (`compile`), its steps, and the depth and size of its values (`budget`).
//!
//! `conversation.rs` has messages and options, also as JSON; `spans.rs` locates the messages in the
//! tokens of the prompt.

mod budget;
mod compile;
mod conversation;
mod environment;
mod filters;
mod namespace;
#[cfg(test)]
mod span_tests;
mod spans;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use minijinja::value::Serde;
use minijinja::{AutoEscape, ErrorKind, Value, machinery};
use serde::Deserialize;

use crate::escape;
use crate::files::{MAX_SETTINGS_BYTES, read_small_if_exists};
use crate::tokenizer::SpecialTokens;
use crate::{Error, Result};
use budget::{Budget, EXCEEDED};
pub use conversation::{ChatOptions, Conversation, Message};
use environment::REFUSED;
pub(crate) use spans::not_a_chat;
pub use spans::{ChatPrompt, ChatSpans, MessageSpan};

/// A chat template. It is compiled when a conversation is rendered, not when a model is loaded: a
/// model whose template is faulty still runs on plain text.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: Arc<str>,
    /// The file it came from, for messages.
    origin: PathBuf,
}

const NAME: &str = "chat_template";
const NO_CHAT: &str = "correct the template, or give the prompt as plain text instead of a chat";

/// Stack of the thread that renders. It is only reserved, and fits the recursion that the limits of
/// `compile` and `budget` permit.
const STACK_BYTES: usize = 64 << 20;
/// Limit of the reason that a template gives for refusing messages, in characters.
const MAX_REASON: usize = 1000;

impl ChatTemplate {
    /// Wraps a template; `origin` is the file that holds it, for messages.
    ///
    /// ```
    /// use pellucid_models::chat::{ChatTemplate, Message};
    /// let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "a.jinja".as_ref());
    /// let text = template.render(&[Message::new("user", "Hi")], false, &Default::default())?;
    /// assert_eq!(text, "<user>Hi");
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn new(source: &str, origin: &Path) -> ChatTemplate {
        ChatTemplate { source: source.into(), origin: origin.to_owned() }
    }

    /// Reads the chat template of a Hugging Face directory; `None` if it has none.
    ///
    /// Looks in `chat_template.jinja`, then `chat_template.json`, then `tokenizer_config.json`.
    pub fn from_dir(dir: &Path) -> Result<Option<ChatTemplate>> {
        let path = dir.join("chat_template.jinja");
        if let Some(source) = read_small_if_exists(&path, MAX_SETTINGS_BYTES)? {
            let source = String::from_utf8(source)
                .map_err(|_| Error::invalid(&path, "the template is not UTF-8", "download the file again"))?;
            return Ok(Some(ChatTemplate::new(&source, &path)));
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let path = dir.join(name);
            if let Some(json) = read_small_if_exists(&path, MAX_SETTINGS_BYTES)?
                && let Some(source) = source_in(&json, &path)?
            {
                return Ok(Some(ChatTemplate::new(&source, &path)));
            }
        }
        Ok(None)
    }

    /// The Jinja source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation; `add_generation_prompt` appends the start of an assistant turn.
    ///
    /// The text contains the special tokens, so encode it with `add_special` false.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool, special: &SpecialTokens) -> Result<String> {
        self.render_with(messages, &ChatOptions { add_generation_prompt, ..ChatOptions::default() }, special)
    }

    /// Like [`render`](Self::render), with all options.
    pub fn render_with(&self, messages: &[Message], options: &ChatOptions, special: &SpecialTokens) -> Result<String> {
        let mut text = self.render_uncut(messages, options, special)?;
        options.cut_final_message(&mut text, messages)?;
        Ok(text)
    }

    /// Renders a conversation with the end of its final message, also for
    /// `continue_final_message`.
    fn render_uncut(&self, messages: &[Message], options: &ChatOptions, special: &SpecialTokens) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::usage("a chat needs at least one message", "give a message of the role `user`"));
        }
        let mut context: Vec<(&str, Value)> =
            special.texts.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str()))).collect();
        context.extend(options.variables.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        context.push(("messages", messages.iter().map(|message| Value::from(Serde(message))).collect()));
        let add_generation_prompt = options.add_generation_prompt && !options.continue_final_message;
        context.push(("add_generation_prompt", Value::from(add_generation_prompt)));
        let input_bytes = serde_json::to_string(&(messages, &options.variables)).map_or(0, |json| json.len());
        let context = Value::from_pairs(context);

        // On a thread of its own, because compiling and printing values is recursive.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let render = move || self.render_value(context, input_bytes);
            let thread = thread.spawn_scoped(scope, render).map_err(|error| {
                Error::usage(format!("no thread for the chat template: {error}"), "end other programs, and try again")
            })?;
            thread.join().unwrap_or_else(|_| {
                Err(Error::invalid(&self.origin, "the chat template causes a fault of the interpreter", NO_CHAT))
            })
        })
    }

    /// Compiles the template and renders it with its variables, within the limits of [`Budget`].
    fn render_value(&self, context: Value, input_bytes: usize) -> Result<String> {
        let invalid = |problem: String| Error::invalid(&self.origin, problem, NO_CHAT);
        if self.source.len() > compile::MAX_SOURCE_BYTES {
            let (length, limit) = (self.source.len(), compile::MAX_SOURCE_BYTES);
            return Err(invalid(format!("the chat template has {length} bytes; the limit is {limit}")));
        }
        let unparsed = |error| invalid(format!("the chat template does not parse: {}", describe(&error)));
        let source = environment::without_generation_tags(&self.source);
        let source = compile::checked_source(&source, &environment::syntax()).map_err(unparsed)?;
        let compiled = compile::compile(&source, NAME, environment::syntax()).map_err(unparsed)?;
        let budget = Arc::new(Budget::new(input_bytes));
        let environment = environment::build(&budget);
        let mut text = String::new();
        machinery::eval(
            &environment,
            &compiled.instructions,
            context,
            &compiled.blocks,
            &mut machinery::make_string_output(&mut text),
            AutoEscape::None,
        )
        .map_err(|error| self.render_error(&error))?;
        budget.check_bytes(text.len() as u64).map_err(|error| self.render_error(&error))?;
        Ok(text)
    }

    fn render_error(&self, error: &minijinja::Error) -> Error {
        let detail = error.detail().unwrap_or_default();
        // `raise_exception` means that the messages are wrong; any other error is the template's.
        if let Some(reason) = detail.strip_prefix(REFUSED) {
            let remedy =
                "change the messages accordingly; if a role is not supported, put its text into the first user message";
            let reason = escape::text(reason, MAX_REASON);
            return Error::invalid(&self.origin, format!("the chat template refuses these messages: {reason}"), remedy);
        }
        let problem = match (error.kind(), detail.strip_prefix(EXCEEDED)) {
            (ErrorKind::OutOfFuel, _) => "the chat template exceeds the step limit".to_owned(),
            (_, Some(limit)) => format!("the chat template exceeds a limit: {limit}"),
            _ => format!("the chat template fails: {}", describe(error)),
        };
        Error::invalid(&self.origin, problem, NO_CHAT)
    }
}

/// The template in a JSON file: a string, or a list of named templates, of which `default` is used.
fn source_in(json: &[u8], path: &Path) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct File {
        chat_template: Option<Templates>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Templates {
        One(String),
        Named(Vec<Named>),
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        template: String,
    }

    let file: File = serde_json::from_slice(json).map_err(|error| {
        Error::invalid(path, format!("`chat_template` cannot be read: {error}"), "download the file again")
    })?;
    match file.chat_template {
        None => Ok(None),
        Some(Templates::One(source)) => Ok(Some(source)),
        Some(Templates::Named(mut named)) => {
            let chosen = named.iter().position(|one| one.name == "default").or((named.len() == 1).then_some(0));
            if let Some(index) = chosen {
                return Ok(Some(named.swap_remove(index).template));
            }
            let names: Vec<&str> = named.iter().map(|one| one.name.as_str()).collect();
            let problem = format!("none of the chat templates is named `default`; there are: {}", names.join(", "));
            Err(Error::invalid(path, problem, "save the one to use as chat_template.jinja beside it"))
        }
    }
}

/// Formats a template error with its line.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    let what = escape::text(&what, MAX_REASON);
    error.line().map_or(what.clone(), |line| format!("line {line}: {what}"))
}
