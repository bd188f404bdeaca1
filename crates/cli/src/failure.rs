//! Failure of a command: message, hint and exit code.

use crate::hints;
use std::fmt;

/// A failure to report to the user.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// Negative answer (unsupported model, failed check, regression): exit code 1.
    pub fn no(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: Some(hint.into()), code: 1 }
    }

    /// Wrong usage or bad input: exit code 2.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: Some(hint.into()), code: 2 }
    }

    /// Internal error: exit code 3.
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: None, code: 3 }
    }

    /// Invalid or impossible measurement: exit code 5.
    pub fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: Some(hint.into()), code: 5 }
    }

    /// Names the part of the input that the message is about.
    pub fn in_context(self, context: &str) -> Failure {
        Failure { message: format!("{context}: {}", self.message), ..self }
    }

    /// Ended by Ctrl-C: exit code 130, as shells report it.
    pub fn interrupted(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: Some(hint.into()), code: 130 }
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The remedy, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) if !hint.is_empty() => write!(f, "\n\nhint: {hint}"),
            _ => Ok(()),
        }
    }
}

impl From<pellucid_models::Error> for Failure {
    fn from(error: pellucid_models::Error) -> Failure {
        // An unsupported model is a negative answer, not wrong usage.
        let code = if matches!(error.cause(), pellucid_models::Error::Unsupported { .. }) { 1 } else { 2 };
        Failure { message: error.to_string(), hint: error.remedy().map(hints::word), code }
    }
}

impl From<pellucid_engine::Error> for Failure {
    fn from(error: pellucid_engine::Error) -> Failure {
        Failure::from(pellucid_models::Error::from(error))
    }
}

/// Reports that stdout cannot be written. A closed pipe is the reader's choice: the program exits
/// quietly.
pub fn output(error: std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    Failure::usage(format!("cannot write the results: {error}"), "check where stdout goes")
}
