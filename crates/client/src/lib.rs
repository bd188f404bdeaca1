//! A client of the Pellucid server: models that run elsewhere, with the bits of a local run.
//!
//! [`RemoteModel::connect`] fetches the [outline](pellucid_models::outline) of a served model. From
//! then on tokens, chats, sites, plans and their checks are local and exact; a run, a generation or
//! a sweep sends tokens and a plan, never code, and returns what the engine returned on the server.
//!
//! | module | contents |
//! |---|---|
//! | `address` | URLs of servers |
//! | `http` | one request: token, interrupts, statuses as errors |
//! | `model` | [`RemoteModel`]: connecting, runs, branches, generations, weights |
//! | `error` | what can go wrong on the way, with hints |
//!
//! The formats are in [`pellucid_models::wire`], which the server also uses.

mod address;
mod error;
mod http;
mod model;

pub use address::Address;
pub use error::{Error, Result};
pub use model::{ConnectOptions, Explained, RemoteGeneration, RemoteModel, RemoteRun, TOKEN_VARIABLE};
