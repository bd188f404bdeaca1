//! What can go wrong in the engine: always before work starts where that can be known.

/// Every failure of this crate: a sentence that names the thing and the place, and a remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A site, point or pattern that does not exist on this program.
    #[error("{problem}")]
    Site {
        /// What was asked for and why it does not exist.
        problem: String,
        /// The nearest thing that does.
        remedy: String,
    },
    /// A plan that cannot work.
    #[error("tap {tap} on `{site}`: {problem}")]
    Plan {
        /// Index of the tap in the plan.
        tap: usize,
        /// Its site as written.
        site: String,
        /// What is wrong.
        problem: String,
        /// What to change.
        remedy: String,
    },
    /// A value of a plan that cannot be computed.
    #[error("{value}: {problem}")]
    Value {
        /// Which value.
        value: String,
        /// What is wrong.
        problem: String,
        /// What to change.
        remedy: String,
    },
    /// Several problems of one plan.
    #[error("{}", listed(.0))]
    Several(Vec<Error>),
    /// Input tokens that the model cannot take.
    #[error("{problem}")]
    Input {
        /// What is wrong with which row.
        problem: String,
        /// What to change.
        remedy: String,
    },
    /// The one who asked for the call wanted it no more: see [`Interrupt`](crate::Interrupt).
    #[error("the call was interrupted")]
    Interrupted,
    /// An architecture whose numbers contradict each other.
    #[error("impossible architecture: {problem}")]
    Architecture {
        /// The contradiction.
        problem: String,
    },
}

fn listed(errors: &[Error]) -> String {
    let lines: Vec<String> = errors.iter().map(|error| format!("- {error}")).collect();
    format!("{} problems:\n{}", errors.len(), lines.join("\n"))
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What the user can do about it.
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Error::Site { remedy, .. }
            | Error::Plan { remedy, .. }
            | Error::Value { remedy, .. }
            | Error::Input { remedy, .. } => Some(remedy),
            Error::Interrupted => None,
            Error::Several(all) => all.first().and_then(Error::remedy),
            Error::Architecture { .. } => Some("correct config.json, or get it anew from where the model came from"),
        }
    }

    /// One error of several; the one itself where there is only one.
    pub(crate) fn all(mut errors: Vec<Error>) -> Error {
        if errors.len() == 1 { errors.remove(0) } else { Error::Several(errors) }
    }

    /// An [`Error::Input`].
    pub fn input(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Input { problem: problem.into(), remedy: remedy.into() }
    }

    /// An [`Error::Site`].
    pub fn site(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Site { problem: problem.into(), remedy: remedy.into() }
    }
}
