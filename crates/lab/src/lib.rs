//! The performance lab: measurements in fresh processes, with their outputs checked.
//!
//! [`protocol`] is what a worker is asked and what it answers, one JSON value each; [`worker`] is our side of it and
//! `peers/transformers.py` the same for Hugging Face transformers; [`speed`] runs both in turn on the same weights and
//! reports ratios, never single times.

pub mod protocol;
pub mod speed;
pub mod worker;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A worker could not be started or did not answer.
    #[error("{worker}: {problem}")]
    Worker {
        /// Which worker.
        worker: String,
        /// What happened.
        problem: String,
    },
    /// Two workers were given the same job and answered differently.
    #[error("{measure}: the outputs differ: {difference}")]
    Wrong {
        /// The measurement.
        measure: String,
        /// How they differ.
        difference: String,
    },
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(#[from] pellucid_models::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
