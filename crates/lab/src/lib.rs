//! The performance lab: controlled benchmarks of Pellucid and its peers.
//!
//! Each measurement runs in a fresh process ([`executor`]) that speaks one JSON [`protocol`].
//! Pellucid's side of it is [`worker`]; the peers' workers are in `peers/`. A [`suite`] (one of the
//! [`builtin_suites`] or a TOML file) lists variants, workloads and metrics. A [`session`] runs
//! pairs of processes in random ABBA order, including an A/A control of the reference against
//! itself, until the confidence intervals ([`stats`]) are narrow enough. [`check`] discards the
//! times of wrong outputs, [`verdict`] classifies each comparison. [`result`] is the file format
//! that [`report`] and [`baseline`] read.
//!
//! Three suites do not compare pairs of variants: [`capture`](mod@capture) (cost of captures in
//! batched generation), [`analysis_sessions`] (time and memory of
//! analysis sessions) and [`identify`] (latency and correctness of model inspection).
//! Code that needs the [`counting`] allocator runs in the second binary, `pellucid-lab-worker`, so
//! that the product binary keeps the system allocator.

pub mod analysis_sessions;
pub mod baseline;
pub mod budget;
pub mod builtin_suites;
pub mod candle;
pub mod capture;
pub mod check;
pub mod conclusion;
pub mod counting;
pub mod environment;
pub mod executor;
pub mod gpt2_shaped;
pub mod history;
pub mod identify;
pub mod json_float;
pub mod lab_worker;
mod memory;
pub mod noise;
pub mod performance;
pub mod protocol;
pub mod report;
pub mod result;
pub mod roofline;
pub mod rte;
pub mod selftest;
pub mod session;
pub mod stats;
pub mod suite;
pub mod survey;
pub mod verdict;
pub mod worker;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The suite is invalid.
    #[error("{suite}: {problem}")]
    Suite {
        /// Name of the suite, or of its file.
        suite: String,
        /// The mistake.
        problem: String,
    },
    /// A result, baseline or log file cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        problem: String,
    },
    /// `pellucid-lab-worker` is missing.
    #[error("{} is missing", path.display())]
    NoWorker {
        /// The expected path.
        path: std::path::PathBuf,
    },
    /// The results come from different machines, builds or models.
    #[error("the two results cannot be compared: {}", .0.join("; "))]
    Mismatch(Vec<String>),
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(#[from] pellucid_models::Error),
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
