//! The messages between a server and clients of its models: each format is written and read here.
//!
//! A client has the [outline](crate::outline) of a model and sends rows of tokens with a plan; the
//! server computes what [`Model::run`](pellucid_engine::Model::run),
//! [`generate`](pellucid_engine::Model::generate) and [`Base::branches`](pellucid_engine::Base)
//! compute, and answers with everything that they return, bit for bit.
//!
//! | module | contents |
//! |---|---|
//! | `calls` | bodies of requests, JSON |
//! | `results` | captures, saved values and generated rows: a safetensors file with a JSON header |
//! | `frames` | streams: lines of JSON, some followed by bytes |
//! | `fault` | errors of the engine as data, so that each front end words its own hints |
//!
//! A change that an older program would misread raises [`PROTOCOL`].

mod calls;
mod fault;
mod frames;
mod results;

pub use calls::{BranchesCall, GenerateCall, RunCall, plan_for_wire};
pub use fault::Fault;
pub use frames::{Frame, FrameReader, encode_frame};
pub use results::{ArrayFile, NanPlace, WireResults};

use serde::{Deserialize, Serialize};

/// Version of the formats.
pub const PROTOCOL: u32 = 1;

/// Media type of results.
pub const RESULTS: &str = "application/vnd.pellucid.results";

/// Media type of streams.
pub const FRAMES: &str = "application/vnd.pellucid.frames";

/// The answer to the first request of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the server.
    pub protocol: u32,
    /// Version of the server's program.
    pub version: String,
    /// The model's name on the server.
    pub id: String,
    /// The model; absent if the protocols differ.
    pub outline: Option<crate::outline::ModelOutline>,
}
