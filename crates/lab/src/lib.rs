//! The performance lab: measurements that can be believed.
//!
//! Every measurement is a fresh process ([`executor`]) that speaks one JSON [`protocol`]; our side of it is [`worker`], the peers' are the
//! programs in `peers/`. A [`suite`] says who does what; a [`session`] runs pairs of them in random ABBA order, with an arm of
//! the reference against itself, until the [`stats`] are precise enough; [`check`] sees to it that wrong numbers have no time, and
//! [`verdict`] says what may be said. [`result`] is what a session leaves behind, for [`report`] and [`baseline`] to read.

pub mod baseline;
pub mod budget;
pub mod candle;
pub mod check;
pub mod conclusion;
pub mod counting;
pub mod environment;
pub mod executor;
pub mod history;
pub mod loader;
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
pub mod sessions;
pub mod stats;
pub mod suite;
pub mod suites;
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
    /// Two sessions that must not be compared.
    #[error("the two results do not belong together: {}", .0.join("; "))]
    Mismatch(Vec<String>),
    /// The model could not be loaded or run.
    #[error(transparent)]
    Model(#[from] pellucid_models::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
