//! Positions of the messages of a chat, which the crate `pellucid-models` resolves to a list.

use serde_json::{Map, Value, json};
use std::fmt;

/// Positions of one message of a chat, or of all messages of a role.
///
/// ```
/// use pellucid_engine::plan::{MessagePart, MessagePositions};
/// let last = MessagePositions::message(-1).part(MessagePart::Header);
/// assert_eq!(MessagePositions::parse("message:-1.header"), Some(last));
/// assert_eq!(MessagePositions::parse("role:user"), Some(MessagePositions::role("user")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePositions {
    /// The messages.
    pub messages: Messages,
    /// The part of each message.
    pub part: MessagePart,
}

/// Messages of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Messages {
    /// The message with this index; negative indices count from the last message.
    Index(i64),
    /// All messages with this role, as the caller named it (not as the template renames it).
    Role(String),
}

/// Part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MessagePart {
    /// The tokens before the content, such as `<|im_start|>user`.
    Header,
    /// The content.
    #[default]
    Content,
    /// The tokens that end the message, such as `<|im_end|>`.
    Footer,
    /// All three.
    All,
}

impl MessagePart {
    /// Every part with its name.
    pub const NAMES: [(MessagePart, &'static str); 4] = [
        (MessagePart::Header, "header"),
        (MessagePart::Content, "content"),
        (MessagePart::Footer, "footer"),
        (MessagePart::All, "all"),
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        MessagePart::NAMES.iter().find(|(part, _)| *part == self).map_or("content", |(_, name)| name)
    }

    /// The part with this name.
    pub fn from_name(name: &str) -> Option<MessagePart> {
        MessagePart::NAMES.iter().find(|(_, known)| *known == name).map(|(part, _)| *part)
    }
}

impl MessagePositions {
    /// The content of one message.
    pub fn message(index: i64) -> MessagePositions {
        MessagePositions { messages: Messages::Index(index), part: MessagePart::Content }
    }

    /// The contents of all messages with this role.
    pub fn role(role: impl Into<String>) -> MessagePositions {
        MessagePositions { messages: Messages::Role(role.into()), part: MessagePart::Content }
    }

    /// Selects another part of the messages.
    pub fn part(self, part: MessagePart) -> MessagePositions {
        MessagePositions { part, ..self }
    }

    /// Parses `message:2`, `role:user`, `message:-1.header`.
    pub fn parse(text: &str) -> Option<MessagePositions> {
        let (kind, rest) = text.split_once(':')?;
        let (name, part) = match rest.rsplit_once('.') {
            Some((name, part)) => (name, MessagePart::from_name(part)?),
            None => (rest, MessagePart::Content),
        };
        let messages = match kind {
            "message" => Messages::Index(name.parse().ok()?),
            "role" if !name.is_empty() => Messages::Role(name.into()),
            _ => return None,
        };
        Some(MessagePositions { messages, part })
    }

    /// Reads `{"message": 2}` or `{"role": "user"}`, each with an optional `part`.
    pub(super) fn from_json(object: &Map<String, Value>) -> Result<MessagePositions, String> {
        let messages = match (object.get("message"), object.get("role")) {
            (Some(index), None) => {
                Messages::Index(index.as_i64().ok_or_else(|| format!("`message` is {index}; it must be an integer"))?)
            }
            (None, Some(Value::String(role))) => Messages::Role(role.clone()),
            (None, Some(role)) => return Err(format!("`role` is {role}; it must be a string")),
            (Some(_), Some(_)) => return Err("positions select one `message` or all of a `role`, not both".into()),
            (None, None) => {
                return Err(
                    "a positions object must be {\"token\": \"text\"}, {\"message\": 2} or {\"role\": \"user\"}".into(),
                );
            }
        };
        let part = match object.get("part") {
            None => MessagePart::Content,
            Some(part) => part.as_str().and_then(MessagePart::from_name).ok_or_else(|| {
                format!("`part` is {part}; the parts of a message are header, content, footer and all")
            })?,
        };
        match object.keys().find(|key| !["message", "role", "part"].contains(&key.as_str())) {
            Some(key) => Err(format!("positions of messages have no `{key}`; they have message, role and part")),
            None => Ok(MessagePositions { messages, part }),
        }
    }

    /// The object that [`from_json`](Self::from_json) reads.
    pub(super) fn to_json(&self) -> Value {
        let mut object = match &self.messages {
            Messages::Index(index) => json!({ "message": index }),
            Messages::Role(role) => json!({ "role": role }),
        };
        if self.part != MessagePart::Content {
            object["part"] = self.part.name().into();
        }
        object
    }
}

impl fmt::Display for MessagePositions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.messages {
            Messages::Index(index) => write!(f, "message:{index}")?,
            Messages::Role(role) => write!(f, "role:{role}")?,
        }
        if self.part == MessagePart::Content { Ok(()) } else { write!(f, ".{}", self.part.name()) }
    }
}
