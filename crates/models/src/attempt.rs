//! The strategies that load a model, in their order, and what became of each.
//!
//! [`select_family`](crate::select_family::select_family) decides and fills in these records; this file is only their data, so that
//! errors can carry them.

use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// A way to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// By the family of its own type.
    Native,
    /// By the family that its type is mapped to.
    Mapped,
    /// By the family that the caller names.
    Assumed,
    /// As an adapter, merged into its base model.
    Adapter,
    /// As a GGUF file.
    Gguf,
}

impl Strategy {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Strategy; 5] =
        [Strategy::Native, Strategy::Mapped, Strategy::Assumed, Strategy::Adapter, Strategy::Gguf];

    /// What it is called.
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

/// What became of a way to load a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It loads the model.
    Taken,
    /// It does not apply to this path.
    Passed,
    /// It applies to this path and cannot load it.
    Failed,
    /// An earlier one loads the model.
    NotNeeded,
}

impl Outcome {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Taken => "taken",
            Outcome::Passed => "passed over",
            Outcome::Failed => "failed",
            Outcome::NotNeeded => "not needed",
        }
    }
}

/// A way to load a model, what became of it, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Attempt {
    /// The way.
    pub strategy: Strategy,
    /// What became of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.strategy, self.outcome.name())?;
        if self.outcome == Outcome::NotNeeded { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

/// The attempts as the end of an error's message, up to the first that failed. One that failed with the error itself does not repeat it.
pub(crate) fn list(error: &str, attempts: &[Attempt]) -> String {
    let failed = attempts.iter().position(|attempt| attempt.outcome == Outcome::Failed);
    let made = &attempts[..failed.map_or(attempts.len(), |failed| failed + 1)];
    made.iter().fold("\nways to load it that were tried:".to_owned(), |text, attempt| match attempt.reason == error {
        true => format!("{text}\n  {}: {}: as said above", attempt.strategy, attempt.outcome.name()),
        false => format!("{text}\n  {attempt}"),
    })
}
