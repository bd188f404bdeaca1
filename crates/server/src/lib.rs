//! The HTTP server of Pellucid: the OpenAI API, with plans, captures and steering on every request.
//!
//! `pellucid serve` starts it. This crate is the only one that knows tokio and axum; its callers
//! see a blocking [`Server`]. Each route is one file in `routes/` and one row of its table, and the
//! OpenAPI description is generated from the same types that parse the requests.
//!
//! | module | contents |
//! |---|---|
//! | `options` | addresses, limits, tokens |
//! | `registry` | the models by name: loaded on demand, unloaded for others; adapters, aliases |
//! | `server` | the listener: connections, timeouts, shutdown |
//! | `security` | Host, Origin and token checks, before anything else |
//! | `body` | request bodies: size, content type, unknown fields, errors that name the field |
//! | `unique_keys` | refuses repeated keys in JSON |
//! | `extract` | parameters in paths and queries |
//! | `api_error` | errors in the shape of the OpenAI API |
//! | `generation` | completion requests: prompts → the scheduler's requests → pieces of text |
//! | `inspection` | plans of requests, captured arrays on the wire, stored captures |
//! | `routes` | one file per route |
//! | `mcp` | MCP: tools for coding agents, over stdio and `/mcp` |
//! | `reply` | responses with a JSON body |
//! | `in_process` | the routes without a listener, for fuzzing |
//! | `metrics` | counters for `/metrics` |
//!
//! A request runs on the model's [`Scheduler`](pellucid_engine::Scheduler), so it has the same bits
//! as alone, whatever else is served. Dropping the connection drops the scheduler's handle, which
//! frees its rows before the next pass.

mod api_error;
mod body;
mod error;
mod extract;
mod generation;
mod hints;
mod ids;
mod in_process;
mod inspection;
mod logging;
mod mcp;
mod metrics;
mod options;
mod registry;
mod reply;
mod routes;
mod security;
mod server;
mod sse;
mod state;
mod unique_keys;

pub use error::{Error, Result};
#[doc(hidden)]
pub use in_process::{Answer, InProcess};
pub use logging::{LogFormat, start_logging};
pub use mcp::serve_stdio;
pub use options::{Alias, Limits, ServerOptions};
pub use registry::{ModelEntry, ModelFiles, ModelSpec};
pub use routes::openapi;
pub use server::{Server, ShutdownHandle};
