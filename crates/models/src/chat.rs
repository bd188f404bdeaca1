//! Chat templates: from messages to the text that a chat model was trained on.
//!
//! Templates are Jinja programs written for Python, so the environment here is set up as transformers sets up its own:
//! blocks take their line with them, Python's methods on strings and maps exist, `raise_exception` and `strftime_now`
//! are there, and `tojson` writes what `json.dumps` writes. A template comes with the model and is not to be trusted:
//! it can only compute a string, and only for so long.

mod environment;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind, Value};
use serde::{Deserialize, Serialize};

use crate::tokenizer::{Special, read_optional};
use crate::{Error, Result};
use environment::REFUSED;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of a role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
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
            Error::invalid(origin, format!("the chat template does not parse: {}", said(&error)), NO_CHAT)
        })?;
        Ok(ChatTemplate { environment, origin: origin.to_owned() })
    }

    /// The chat template of a Hugging Face directory, or `None` where it has none.
    ///
    /// A `chat_template.jinja` wins over a `chat_template.json`, and that over `tokenizer_config.json`.
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

    /// The text of a conversation; `add_generation_prompt` ends it where the assistant is to speak.
    ///
    /// The text holds the special tokens written out, so encode it with `add_special` false.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool, special: &Special) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::usage("a chat needs at least one message", "give a message of the role `user`"));
        }
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| Value::from_pairs([("role", message.role.as_str()), ("content", message.content.as_str())]))
            .collect();
        let mut context: Vec<(&str, Value)> =
            special.texts.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str()))).collect();
        context.push(("messages", Value::from(messages)));
        context.push(("add_generation_prompt", Value::from(add_generation_prompt)));

        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| template.render(Value::from_pairs(context)));
        rendered.map_err(|error| self.render_error(&error))
    }

    fn render_error(&self, error: &minijinja::Error) -> Error {
        // What a template raises itself is about the conversation, everything else about the template.
        if let Some(reason) = error.detail().and_then(|detail| detail.strip_prefix(REFUSED)) {
            let remedy =
                "change the messages accordingly; where a role is not supported, say it in the first user message";
            return Error::invalid(&self.origin, format!("the chat template refuses these messages: {reason}"), remedy);
        }
        let problem = match error.kind() {
            ErrorKind::OutOfFuel => "the chat template does not come to an end".to_owned(),
            _ => format!("the chat template fails: {}", said(error)),
        };
        Error::invalid(&self.origin, problem, NO_CHAT)
    }
}

/// The template in a JSON file: a string, or a list of named ones of which `default` is the plain chat.
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
            if let Some(number) = chosen {
                return Ok(Some(named.swap_remove(number).template));
            }
            let names: Vec<&str> = named.iter().map(|one| one.name.as_str()).collect();
            let problem = format!("none of the chat templates is named `default`; there are: {}", names.join(", "));
            Err(Error::invalid(path, problem, "save the one to use as chat_template.jinja beside it"))
        }
    }
}

/// What the template engine says, with the line.
fn said(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    error.line().map_or(what.clone(), |line| format!("line {line}: {what}"))
}
