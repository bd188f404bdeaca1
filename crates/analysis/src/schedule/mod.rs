//! The schedule of a run of the [`Scheduler`](pellucid_engine::Scheduler): which request was in
//! which pass, as a web page ([`html`]) or as a Chrome trace ([`chrome_trace`]).
//!
//! `spans.rs` joins the passes of a request to spans and gives each request a lane, `charts.rs`
//! draws quantities over time, `page.rs` puts both on a page.

mod charts;
mod page;
mod spans;
mod trace_events;

pub use page::html;
pub use trace_events::chrome_trace;

use pellucid_engine::PassRecord;
use std::time::Duration;

/// The passes of a run and the requests in them.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// Name of the model.
    pub model: String,
    /// The passes, as [`Scheduler::passes`](pellucid_engine::Scheduler::passes) returns them.
    pub passes: Vec<PassRecord>,
    /// The requests, in the order of submission.
    pub requests: Vec<ScheduledRequest>,
}

/// A request of the schedule.
#[derive(Clone, Debug, Default)]
pub struct ScheduledRequest {
    /// Its id, for display.
    pub label: String,
    /// Time from the scheduler's start to its submission.
    pub submitted: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// Prompt and decode tokens of a pass.
fn tokens_of(pass: &PassRecord) -> (usize, usize) {
    pass.requests
        .iter()
        .fold((0, 0), |(prompt, decode), share| (prompt + share.prompt_tokens, decode + share.decode_tokens))
}
