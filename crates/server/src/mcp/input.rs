//! Arguments that several tools share, and how they become fields of requests.

use crate::api_error::ApiError;
use crate::generation::{ChatMessage, PromptField};
use crate::inspection::PlanFields;
use crate::registry::ModelUse;
use crate::routes::direct::InputFields;
use crate::state::AppState;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The model and the input of a call: exactly one of `prompt`, `tokens` and `messages`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub struct PromptInput {
    /// Name of the model; `describe` lists the names. The default model if absent.
    pub model: Option<String>,
    /// A text, or a list of texts. Each text is one row; rows run together without padding.
    pub prompt: Option<Texts>,
    /// Token ids instead of `prompt`: one list for each row.
    pub tokens: Option<Vec<Vec<u32>>>,
    /// A conversation instead of `prompt`, for models with a chat template. The start of the
    /// assistant's turn is added.
    pub messages: Option<Vec<MessageInput>>,
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "`prompt` is a text or a list of texts")]
pub enum Texts {
    /// One row.
    One(String),
    /// One row for each text.
    Many(Vec<String>),
}

/// A message of a conversation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct MessageInput {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl PromptInput {
    /// The model of the call, loaded if it is not in memory. `MODEL:ADAPTER` names an adapter.
    pub async fn acquire(&self, state: &AppState) -> Result<ModelUse, ApiError> {
        state.models.acquire(self.model.as_deref(), None).await
    }

    /// The same as fields of a request.
    pub fn fields(&self) -> Result<InputFields, ApiError> {
        let prompt = match (&self.prompt, &self.tokens) {
            (Some(_), Some(_)) => {
                return Err(ApiError::field("tokens", "the call has `prompt` and `tokens`; give one of them"));
            }
            (Some(Texts::One(text)), None) => Some(PromptField::Text(text.clone())),
            (Some(Texts::Many(texts)), None) => Some(PromptField::Texts(texts.clone())),
            (None, Some(tokens)) => Some(PromptField::TokenLists(tokens.clone())),
            (None, None) => None,
        };
        let message = |message: &MessageInput| {
            let MessageInput { role, content } = message;
            serde_json::from_value::<ChatMessage>(json!({ "role": role, "content": content }))
                .map_err(|error| ApiError::field("messages", error.to_string()))
        };
        let messages = self.messages.as_ref().map(|messages| messages.iter().map(message).collect()).transpose()?;
        Ok(InputFields { model: self.model.clone(), prompt, messages, ..InputFields::default() })
    }
}

/// The edits of a call.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct EditInput {
    /// A plan: `{"taps": [TAP, …]}`. A tap has a `site` (see the tool `sites`), an optional
    /// selection (`positions`: 3, [0, -1], "last", "-4:", a token's text such as " dog"; `rows`,
    /// `heads`, `units`: lists of indices) and one action: `"zero": true`, `"scale": 0.5`, `"add":
    /// [numbers]`, `"set": [numbers]`, `"add": {"vector": [numbers], "scale": 2}`, `"set": {"from":
    /// {"rows": [0]}}` (patch from another row), `"project_out": {"vector": [numbers]}`, `"skip":
    /// true` (site `layers.N`: the whole layer), `"capture": true` or `"capture": {"reduce": "mean"
    /// | "norm" | {"topk": 5}}`. A plan names no files.
    #[schemars(with = "Option<Map<String, Value>>")]
    pub plan: Option<Value>,
    /// A steering spec, a short form of a plan that edits the residual stream by layer, such as
    /// `{"layers": {"2": {"operations": [{"type": "add", "vector": [d_model numbers], "scale":
    /// 4}]}}}`. Types are `add`, `cap` and `ablation`.
    #[schemars(with = "Option<Map<String, Value>>")]
    pub steer: Option<Value>,
}

/// The activations that a call returns.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
pub struct CaptureInput {
    /// Sites to read: patterns such as "layers.*.resid_post", or taps such as {"site":
    /// "layers.2.z", "positions": "last", "heads": [0]}. They see the edits of the plan. Results
    /// are summaries; select few positions or units to get all values.
    #[schemars(with = "Option<Vec<PatternOrTap>>")]
    pub capture: Option<Vec<Value>>,
    /// The number of elements of largest magnitude listed for each result [default: 5, at most 20].
    pub top_k: Option<usize>,
    /// Results with at most this many elements list all of them [default: 64, at most 1024].
    pub max_values: Option<usize>,
}

/// A pattern of sites, or a tap without an action.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum PatternOrTap {
    Pattern(String),
    Tap(Map<String, Value>),
}

impl EditInput {
    /// The same as fields of a request, with captures.
    pub fn fields(&self, capture: Option<Vec<Value>>) -> PlanFields {
        PlanFields { plan: self.plan.clone(), steer: self.steer.clone(), capture, ..PlanFields::default() }
    }
}
