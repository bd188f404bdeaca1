//! Chat templates: render messages to the text that a chat model was trained on.
//!
//! Templates are Jinja programs written for Python, so the environment is set up as in
//! transformers: `trim_blocks` and `lstrip_blocks`, Python's methods on strings and maps,
//! `raise_exception`, `strftime_now`, and a `tojson` that writes like `json.dumps`. A template
//! comes with the model and is untrusted: it can only compute a string, with a limit on its steps.
//!
//! `conversation.rs` has messages and options, also as JSON; `spans.rs` locates the messages in the
//! tokens of the prompt.

mod conversation;
mod environment;
#[cfg(test)]
mod span_tests;
mod spans;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde::Deserialize;

use crate::tokenizer::{SpecialTokens, read_optional};
use crate::{Error, Result};
pub use conversation::{ChatOptions, Conversation, Message};
use environment::REFUSED;
pub(crate) use spans::not_a_chat;
pub use spans::{ChatPrompt, ChatSpans, MessageSpan};

/// A compiled chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file it came from, for messages.
    origin: PathBuf,
}

const NAME: &str = "chat_template";
const NO_CHAT: &str = "correct the template, or give the prompt as plain text instead of a chat";

impl ChatTemplate {
    /// Compiles a template; `origin` is the file that holds it, for messages.
    ///
    /// ```
    /// use pellucid_models::chat::{ChatTemplate, Message};
    /// let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "a.jinja".as_ref())?;
    /// let text = template.render(&[Message::new("user", "Hi")], false, &Default::default())?;
    /// assert_eq!(text, "<user>Hi");
    /// # Ok::<(), pellucid_models::Error>(())
    /// ```
    pub fn new(source: &str, origin: &Path) -> Result<ChatTemplate> {
        let mut environment = environment::build();
        environment.add_template_owned(NAME, environment::without_generation_tags(source)).map_err(|error| {
            Error::invalid(origin, format!("the chat template does not parse: {}", describe(&error)), NO_CHAT)
        })?;
        Ok(ChatTemplate { environment, origin: origin.to_owned() })
    }

    /// Reads the chat template of a Hugging Face directory; `None` if it has none.
    ///
    /// Looks in `chat_template.jinja`, then `chat_template.json`, then `tokenizer_config.json`.
    pub fn from_dir(dir: &Path) -> Result<Option<ChatTemplate>> {
        let path = dir.join("chat_template.jinja");
        if let Some(source) = read_optional(&path)? {
            let source = String::from_utf8(source)
                .map_err(|_| Error::invalid(&path, "the template is not UTF-8", "download the file again"))?;
            return ChatTemplate::new(&source, &path).map(Some);
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let path = dir.join(name);
            if let Some(json) = read_optional(&path)?
                && let Some(source) = source_in(&json, &path)?
            {
                return ChatTemplate::new(&source, &path).map(Some);
            }
        }
        Ok(None)
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

        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from_pairs(context)));
        rendered.map_err(|error| self.render_error(&error))
    }

    fn render_error(&self, error: &minijinja::Error) -> Error {
        // `raise_exception` means that the messages are wrong; any other error is the template's.
        if let Some(reason) = error.detail().and_then(|detail| detail.strip_prefix(REFUSED)) {
            let remedy =
                "change the messages accordingly; if a role is not supported, put its text into the first user message";
            return Error::invalid(&self.origin, format!("the chat template refuses these messages: {reason}"), remedy);
        }
        let problem = match error.kind() {
            ErrorKind::OutOfFuel => "the chat template exceeds the step limit".to_owned(),
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
    error.line().map_or(what.clone(), |line| format!("line {line}: {what}"))
}
