//! Tests of the server: a real one on a free port of loopback, and real HTTP clients.

mod bad_input;
mod chat;
mod completions;
mod inspection;
mod load;
mod mcp;
mod security;
mod support;
