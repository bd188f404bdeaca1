//! Errors as data.

use crate::error::Error;
use pellucid_engine::{Error as EngineError, Remedy};
use serde::{Deserialize, Serialize};

/// An error of a call. Its hint is a [`Remedy`] again on the client, which words it for its user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// A site that does not exist.
    Site {
        /// The problem.
        problem: String,
        /// What to change.
        hint: Hint,
    },
    /// An invalid tap.
    Plan {
        /// Index of the tap.
        tap: usize,
        /// Its site.
        site: String,
        /// The problem.
        problem: String,
        /// What to change.
        hint: Hint,
    },
    /// An invalid value.
    Value {
        /// Its name.
        value: String,
        /// The problem.
        problem: String,
        /// What to change.
        hint: Hint,
    },
    /// Several problems of one plan.
    Several {
        /// The problems.
        faults: Vec<Fault>,
    },
    /// Invalid input, or a call that needs more than the server has.
    Input {
        /// The problem.
        problem: String,
        /// What to change.
        hint: Hint,
    },
    /// The call was interrupted.
    Interrupted,
    /// Too many requests wait.
    Busy {
        /// Their number.
        waiting: usize,
    },
    /// A fault of the engine.
    Internal {
        /// What happened.
        problem: String,
    },
}

/// A remedy as data. Remedies that concern the server are texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    /// A text.
    Text(String),
    /// [`Remedy::ListSites`].
    ListSites,
    /// [`Remedy::DidYouMean`].
    DidYouMean(Vec<String>),
    /// [`Remedy::GenerationOptions`].
    GenerationOptions,
}

impl Hint {
    fn new(remedy: Option<&Remedy>, word: fn(&Remedy) -> String) -> Hint {
        match remedy {
            None => Hint::Text(String::new()),
            Some(Remedy::ListSites) => Hint::ListSites,
            Some(Remedy::DidYouMean(names)) => Hint::DidYouMean(names.clone()),
            Some(Remedy::GenerationOptions) => Hint::GenerationOptions,
            Some(Remedy::SiteShapes(rule)) => Hint::Text((*rule).into()),
            Some(other) => Hint::Text(word(other)),
        }
    }

    fn remedy(self) -> Remedy {
        match self {
            Hint::Text(text) => Remedy::Text(text),
            Hint::ListSites => Remedy::ListSites,
            Hint::DidYouMean(names) => Remedy::DidYouMean(names),
            Hint::GenerationOptions => Remedy::GenerationOptions,
        }
    }
}

impl Fault {
    /// Makes a fault of an error; `word` words the remedies that concern the server.
    pub fn new(error: &Error, word: fn(&Remedy) -> String) -> Fault {
        match error.cause() {
            Error::Engine(error) => Fault::of_engine(error, word),
            error => Fault::Input { problem: error.to_string(), hint: Hint::new(error.remedy(), word) },
        }
    }

    fn of_engine(error: &EngineError, word: fn(&Remedy) -> String) -> Fault {
        let hint = Hint::new(error.remedy(), word);
        match error {
            EngineError::Site { problem, .. } => Fault::Site { problem: problem.clone(), hint },
            EngineError::Plan { tap, site, problem, .. } => {
                Fault::Plan { tap: *tap, site: site.clone(), problem: problem.clone(), hint }
            }
            EngineError::Value { value, problem, .. } => {
                Fault::Value { value: value.clone(), problem: problem.clone(), hint }
            }
            EngineError::Several(all) => {
                Fault::Several { faults: all.iter().map(|error| Fault::of_engine(error, word)).collect() }
            }
            EngineError::Interrupted => Fault::Interrupted,
            EngineError::Busy { waiting } => Fault::Busy { waiting: *waiting },
            EngineError::Internal(problem) => Fault::Internal { problem: problem.clone() },
            EngineError::Input { .. } | EngineError::Memory { .. } | EngineError::Architecture { .. } => {
                Fault::Input { problem: error.to_string(), hint }
            }
        }
    }

    /// Returns the error that it was made of.
    pub fn into_error(self) -> EngineError {
        match self {
            Fault::Site { problem, hint } => EngineError::Site { problem, remedy: hint.remedy() },
            Fault::Plan { tap, site, problem, hint } => EngineError::Plan { tap, site, problem, remedy: hint.remedy() },
            Fault::Value { value, problem, hint } => EngineError::Value { value, problem, remedy: hint.remedy() },
            Fault::Several { faults } => EngineError::Several(faults.into_iter().map(Fault::into_error).collect()),
            Fault::Input { problem, hint } => EngineError::Input { problem, remedy: hint.remedy() },
            Fault::Interrupted => EngineError::Interrupted,
            Fault::Busy { waiting } => EngineError::Busy { waiting },
            Fault::Internal { problem } => EngineError::Internal(problem),
        }
    }
}
