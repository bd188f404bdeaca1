//! The strategies for loading a model, and the outcome of each attempt.
//!
//! [`select_family`](crate::select_family::select_family) fills in these records. They are in a
//! file of their own so that errors can carry them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A strategy for loading a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The family of the model's own type.
    Native,
    /// The family that the model's type is mapped to.
    Mapped,
    /// The family that the caller names.
    Assumed,
    /// An adapter, merged into its base model.
    Adapter,
    /// A GGUF file.
    Gguf,
}

impl Strategy {
    /// All strategies, in the order in which they are tried.
    pub const ALL: [Strategy; 5] =
        [Strategy::Native, Strategy::Mapped, Strategy::Assumed, Strategy::Adapter, Strategy::Gguf];

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Native => "native family",
            Strategy::Mapped => "mapped custom type",
            Strategy::Assumed => "assumed family",
            Strategy::Adapter => "adapter merge",
            Strategy::Gguf => "GGUF",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Outcome")]
pub enum AttemptOutcome {
    /// The strategy loads the model.
    Taken,
    /// The strategy does not apply to this path.
    Passed,
    /// The strategy applies to this path, but failed.
    Failed,
    /// An earlier strategy loads the model.
    NotNeeded,
}

impl AttemptOutcome {
    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            AttemptOutcome::Taken => "taken",
            AttemptOutcome::Passed => "passed over",
            AttemptOutcome::Failed => "failed",
            AttemptOutcome::NotNeeded => "not needed",
        }
    }
}

/// A strategy, its outcome, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Attempt {
    /// The strategy.
    pub strategy: Strategy,
    /// Its outcome.
    pub outcome: AttemptOutcome,
    /// Reason of the outcome.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.strategy, self.outcome.name())?;
        if self.outcome == AttemptOutcome::NotNeeded { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

/// Lists the attempts up to the first that failed, as the end of an error message. A reason that
/// equals the error itself is not repeated.
pub(crate) fn list(error: &str, attempts: &[Attempt]) -> String {
    let failed = attempts.iter().position(|attempt| attempt.outcome == AttemptOutcome::Failed);
    let tried = &attempts[..failed.map_or(attempts.len(), |failed| failed + 1)];
    tried.iter().fold("\nstrategies that were tried:".to_owned(), |text, attempt| match attempt.reason == error {
        true => format!("{text}\n  {}: {}: see above", attempt.strategy, attempt.outcome.name()),
        false => format!("{text}\n  {attempt}"),
    })
}
