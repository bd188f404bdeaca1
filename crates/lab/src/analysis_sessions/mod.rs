//! `lab sessions`: time and memory of analysis sessions.
//!
//! Every session is run several times by `pellucid analyze` in a fresh process, which records the
//! time and the memory of each phase. [`sets`] has the sessions that come with the lab: the
//! examples, and the four published workloads at GPT-2's size. [`measure`] runs rounds of all
//! sessions, with the same work in another library ([`peer`]) next to each if requested.
//! [`states`] splits a session into its states, [`report`](mod@report) writes the page, and
//! [`bars`](mod@bars) judges the workloads.

pub mod bars;
pub mod measure;
pub mod outputs;
pub mod peer;
pub mod processes;
pub mod report;
pub mod sets;
pub mod states;

/// The name of this suite.
pub const NAME: &str = "sessions";
/// One-line description.
pub const TITLE: &str = "Analysis sessions: time, memory and uses of each state, in fresh processes";
