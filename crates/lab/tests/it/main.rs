//! Tests of the lab in one binary, on simulated machines and tiny models.

// Helpers.
mod conforms;
mod machine;

// Tests.
mod capture;
mod construction;
mod docs;
mod identify;
mod peers;
mod report;
mod schema;
mod session;
mod verdicts;
