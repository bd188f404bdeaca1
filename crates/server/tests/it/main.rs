//! Tests of the server: a real one on a free port of loopback, and real HTTP clients.

mod adapters;
mod bad_input;
mod chat;
mod completions;
mod examples;
mod inspection;
mod load;
mod mcp;
mod model_files;
mod residency;
mod security;
mod support;
