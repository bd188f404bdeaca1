//! Messages and the options of their rendering, as Rust values and as JSON.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template supports.
    pub role: String,
    /// Text of the message.
    pub content: String,
    /// Other fields that the template may use, such as `name` or `tool_calls`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// Creates a message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), fields: Map::new() }
    }
}

/// Options of rendering a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatOptions {
    /// Append the start of an assistant turn; the default. Has no effect if the final message is
    /// continued.
    pub add_generation_prompt: bool,
    /// End the text after the content of the final message, so that the model continues it.
    pub continue_final_message: bool,
    /// A Jinja template to use instead of the model's.
    pub template: Option<String>,
    /// Variables of the template, such as `enable_thinking` or `tools`.
    pub variables: Map<String, Value>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions {
            add_generation_prompt: true,
            continue_final_message: false,
            template: None,
            variables: Map::new(),
        }
    }
}

impl ChatOptions {
    /// Cuts the text after the final message's content if the model is to continue it.
    pub(super) fn cut_final_message(&self, text: &mut String, messages: &[Message]) -> Result<()> {
        if !self.continue_final_message {
            return Ok(());
        }
        let content = messages.last().map_or("", |message| message.content.as_str());
        if content.trim().is_empty() {
            return Err(Error::usage(
                "the final message is empty, so there is nothing to continue",
                "leave out continue_final_message, or write the start of the answer",
            ));
        }
        let Some(start) = text.rfind(content.trim()) else {
            return Err(Error::usage(
                "the final message cannot be continued: the chat template changes its text",
                "leave out continue_final_message",
            ));
        };
        // A template that does not trim contents also keeps the whitespace at their end.
        let kept = content.trim_start();
        let end = if text[start..].starts_with(kept) { kept.len() } else { content.trim().len() };
        text.truncate(start + end);
        Ok(())
    }
}

/// A conversation with its options.
///
/// ```
/// use pellucid_models::chat::Conversation;
/// let json = r#"{"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": false}"#;
/// let conversation = Conversation::from_json(json)?;
/// assert_eq!(conversation.messages[0].content, "Hi");
/// assert!(conversation.options.variables.contains_key("enable_thinking"));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Message>,
    /// How they are rendered.
    pub options: ChatOptions,
}

impl From<Vec<Message>> for Conversation {
    fn from(messages: Vec<Message>) -> Conversation {
        Conversation { messages, options: ChatOptions::default() }
    }
}

impl Conversation {
    /// Reads a list of messages, or an object with `messages`, `add_generation_prompt`,
    /// `continue_final_message`, `chat_template` (a Jinja template to use instead of the model's)
    /// and variables of the template.
    pub fn from_json(text: &str) -> std::result::Result<Conversation, String> {
        Conversation::from_value(serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    /// Like [`from_json`](Self::from_json), for a parsed value.
    pub fn from_value(value: Value) -> std::result::Result<Conversation, String> {
        let mut object = match value {
            Value::Array(messages) => Map::from_iter([("messages".to_owned(), Value::Array(messages))]),
            Value::Object(object) => object,
            _ => return Err("a conversation is a list of messages, or an object with `messages`".into()),
        };
        let Some(Value::Array(messages)) = object.remove("messages") else {
            return Err("a conversation needs `messages`, a list of {\"role\": …, \"content\": …}".into());
        };
        let messages = messages.into_iter().enumerate().map(|(index, message)| {
            serde_json::from_value(message).map_err(|error| {
                format!("message {index}: {error}; a message is {{\"role\": \"user\", \"content\": \"text\"}}")
            })
        });
        let messages = messages.collect::<std::result::Result<Vec<Message>, String>>()?;
        let mut flag = |name: &str| match object.remove(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(format!("`{name}` is {other}; it must be true or false")),
        };
        let (add, continues) = (flag("add_generation_prompt")?, flag("continue_final_message")?.unwrap_or(false));
        if continues && add == Some(true) {
            return Err("`continue_final_message` and `add_generation_prompt` exclude each other".into());
        }
        let template = match object.remove("chat_template") {
            None | Some(Value::Null) => None,
            Some(Value::String(source)) => Some(source),
            Some(other) => return Err(format!("`chat_template` is {other}; it must be the text of a template")),
        };
        let options = ChatOptions {
            add_generation_prompt: add.unwrap_or(!continues),
            continue_final_message: continues,
            template,
            variables: object,
        };
        Ok(Conversation { messages, options })
    }
}
