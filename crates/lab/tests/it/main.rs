//! Tests of the lab in one binary, on simulated machines and tiny models.

// Helpers.
mod conforms;
mod machine;

// Tests.
mod analysis_sessions;
mod capture;
mod docs;
mod identify;
mod peers;
mod report;
mod schema;
mod session;
mod verdicts;
