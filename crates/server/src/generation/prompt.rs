//! The forms of a prompt: text, token ids, chat messages.

use crate::api_error::{ApiError, ApiResult};
use pellucid_models::LoadedModel;
use pellucid_models::chat::{ChatOptions, ChatPrompt, Conversation, Message};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A prompt as tokens.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The text that the client gave, if it is one.
    pub text: Option<String>,
    pub tokens: Vec<u32>,
    /// The chat, if it is one.
    pub chat: Option<ChatPrompt>,
}

/// `prompt`: a text, a list of texts, token ids, or a list of lists of token ids.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "a prompt is a text, a list of texts, a list of token ids, or a list of lists of token ids"
)]
pub enum PromptField {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    TokenLists(Vec<Vec<u32>>),
}

impl PromptField {
    /// Encodes the prompts. `add_special` adds the tokenizer's special tokens to texts.
    pub fn encode(&self, loaded: &LoadedModel, add_special: bool) -> ApiResult<Vec<Prompt>> {
        let of_text = |text: &String| {
            let tokens = match add_special {
                true => loaded.encode(text),
                false => loaded.tokenizer().and_then(|tokenizer| tokenizer.encode(text, false)),
            };
            let tokens = tokens.map_err(|error| ApiError::from(error).with_param("prompt"))?;
            Ok(Prompt { text: Some(text.clone()), tokens, chat: None })
        };
        let of_tokens = |tokens: &Vec<u32>| Prompt { text: None, tokens: tokens.clone(), chat: None };
        let prompts: Vec<Prompt> = match self {
            PromptField::Text(text) => vec![of_text(text)?],
            PromptField::Texts(texts) => texts.iter().map(of_text).collect::<ApiResult<_>>()?,
            // An empty list reads as no tokens.
            PromptField::Tokens(tokens) => vec![of_tokens(tokens)],
            PromptField::TokenLists(lists) => lists.iter().map(of_tokens).collect(),
        };
        match prompts.iter().position(|prompt| prompt.tokens.is_empty()) {
            Some(index) => Err(ApiError::field("prompt", format!("prompt {index} is empty; give at least one token"))),
            None => Ok(prompts),
        }
    }
}

/// A message of a chat.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant`, or another role that the template supports.
    pub role: String,
    /// A text, or a list of text parts.
    #[serde(default)]
    pub content: Option<Content>,
    /// Other fields for the template, such as `name`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "content is a text or a list of {\"type\": \"text\", \"text\": …}")]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts, which are joined by line breaks.
    Parts(Vec<ContentPart>),
}

/// A part of a content.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct ContentPart {
    /// `text` or `refusal`; others are refused.
    pub r#type: String,
    /// The text.
    #[serde(default)]
    pub text: Option<String>,
    /// The text of a refusal.
    #[serde(default)]
    pub refusal: Option<String>,
}

impl ChatMessage {
    fn message(&self, index: usize, knows_developer: bool) -> ApiResult<Message> {
        let content = match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                let texts = parts.iter().map(|part| match (&*part.r#type, &part.text, &part.refusal) {
                    ("text", Some(text), _) | ("refusal", _, Some(text)) => Ok(text.as_str()),
                    ("text" | "refusal", ..) => {
                        Err(ApiError::field("messages", format!("message {index} has a text part without text")))
                    }
                    (kind, ..) => Err(ApiError::field(
                        "messages",
                        format!("message {index} has a part of the type {kind:?}; only text is supported"),
                    )),
                });
                texts.collect::<ApiResult<Vec<&str>>>()?.join("\n")
            }
        };
        // Templates from before that role know it as `system`.
        let role = if self.role == "developer" && !knows_developer { "system" } else { &self.role };
        Ok(Message { role: role.into(), content, fields: self.fields.clone() })
    }
}

/// Encodes a chat.
pub fn encode_chat(loaded: &LoadedModel, messages: &[ChatMessage], options: ChatOptions) -> ApiResult<Prompt> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty; give at least one message"));
    }
    let knows_developer = match &options.template {
        Some(source) => source.contains("developer"),
        None => loaded.chat.as_ref().is_some_and(|template| template.source().contains("developer")),
    };
    let messages = messages.iter().enumerate().map(|(index, message)| message.message(index, knows_developer));
    let conversation = Conversation { messages: messages.collect::<ApiResult<_>>()?, options };
    let chat = loaded.chat_prompt(&conversation).map_err(|error| ApiError::from(error).with_param("messages"))?;
    if chat.tokens.is_empty() {
        return Err(ApiError::field("messages", "the chat template renders these messages to nothing"));
    }
    Ok(Prompt { text: None, tokens: chat.tokens.clone(), chat: Some(chat) })
}
