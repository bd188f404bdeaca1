//! MCP: tools with which coding agents look into models, over stdio (`pellucid mcp`) and over HTTP
//! (`/mcp` of `pellucid serve`).
//!
//! Each tool is one file in `tools/` and one row of [`tools::table`]; its schemas come from the
//! types of its arguments and answer, whose docs are written for agents. The tools call the same
//! functions as the routes, so they have the same limits, errors and bits. `handler.rs` speaks the
//! protocol (the crate `rmcp`), `http.rs` and `stdio.rs` connect it.
//!
//! | module | contents |
//! |---|---|
//! | `tool` | the trait of tools, schemas, arguments |
//! | `tools` | the tools and their table |
//! | `input` | arguments that several tools share |
//! | `summary` | arrays reduced to what an agent can read |
//! | `error` | errors of tools: field and remedy as text |
//! | `progress` | progress notifications |

mod error;
mod handler;
mod http;
mod input;
mod progress;
mod stdio;
mod summary;
mod tool;
mod tools;

pub use http::router;
pub use stdio::serve_stdio;
