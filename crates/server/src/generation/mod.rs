//! Completion requests: fields and prompts become requests of the scheduler, their tokens pieces of
//! text.
//!
//! `fields.rs` has the fields that both completion routes share, `prompt.rs` the forms of a prompt.
//! `submit.rs` checks a call and submits one request of the scheduler for each prompt, with `n`
//! rows. `run.rs` follows such a request: pieces of text with their log-probabilities as tokens
//! arrive, and its result. `collect.rs` merges the pieces of all prompts. `logprobs.rs` writes
//! log-probabilities in the forms of the API.

mod collect;
mod fields;
mod logprobs;
mod prompt;
mod run;
mod submit;

pub use collect::{Choice, Event, FinishedCall, events, finish};
pub use fields::{CommonFields, GenerationFields, StopField};
pub use logprobs::{ChatLogprobs, CompletionLogprobs, PromptLogprobs, prompt_logprobs, token_text};
pub use prompt::{ChatMessage, Prompt, PromptField, encode_chat};
pub use run::{FinishReason, Piece, PieceToken};
pub use submit::{Call, submit};

use serde::Serialize;
use utoipa::ToSchema;

/// Numbers of tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
}

impl Usage {
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Usage {
        Usage { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}
