//! The performance lab: measurements that can be believed.
//!
//! Every measurement is a fresh process ([`executor`]) that speaks one JSON [`protocol`]; our side of it is [`worker`], the peers' are the
//! programs in `peers/`. A [`suite`] (the [`builtin_suites`] or a file) says who does what; a [`session`] runs pairs of them in random ABBA order, with an arm of
//! the reference against itself, until the [`stats`] are precise enough; [`check`] sees to it that wrong numbers have no time, and
//! [`verdict`] says what may be said. [`result`] is what a session leaves behind, for [`report`] and [`baseline`] to read.
//!
//! Two suites are not sessions of pairs: [`construction`] (what models, tokenizers and runs cost to construct) and [`identify`] (latency and
//! correctness of recognizing models). What needs the [`counting`] allocator runs in the binary `pellucid-lab-worker`, which alone
//! installs it; the product's binary starts that where it is needed.

pub mod baseline;
pub mod budget;
pub mod builtin_suites;
pub mod candle;
pub mod check;
pub mod conclusion;
pub mod construction;
pub mod counting;
pub mod environment;
pub mod executor;
pub mod history;
pub mod identify;
pub mod lab_worker;
mod memory;
pub mod noise;
pub mod number;
pub mod performance;
pub mod protocol;
pub mod report;
pub mod result;
pub mod roofline;
pub mod selftest;
pub mod session;
pub mod stats;
pub mod suite;
pub mod survey;
pub mod verdict;
pub mod worker;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A suite that cannot be run.
    #[error("{suite}: {problem}")]
    Suite {
        /// Which suite.
        suite: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the lab that cannot be read or written.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What happened.
        problem: String,
    },
    /// The binary that counts allocations and serves downloads is not there.
    #[error("{} is missing", path.display())]
    NoWorker {
        /// Where it should be.
        path: std::path::PathBuf,
    },
    /// Two sessions that must not be compared.
    #[error("the two results do not belong together: {}", .0.join("; "))]
    Mismatch(Vec<String>),
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(#[from] pellucid_models::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
