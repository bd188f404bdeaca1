//! Analysis sessions: a model, autoencoders, a labeled dataset, a chain of ops, and a store of
//! results that can be reopened, compared and replayed.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | session files: TOML or YAML, merged; errors with file and line; JSON Schema |
//! | [`dataset`] | rows of JSONL, CSV, Parquet or text; prompts, labels, tokens |
//! | [`ops`] | the table of ops with their schemas, and the composition of chains |
//! | [`store`] | tables of results: writing, reading, summaries, comparison, export |
//! | [`debug`] | perplexity, sample generations and shapes, before a long run |
//! | [`session`] | sessions: from a configuration to a store; resumption, replay |
//! | [`phases`] | time and memory of each phase |
//! | [`table`] | columns and tables in memory |
//! | [`memory`] | resident memory of this process |
//! | [`hash`] | content keys and fingerprints |

pub mod config;
pub mod dataset;
pub mod debug;
pub mod hash;
pub mod memory;
pub mod ops;
pub mod phases;
pub mod session;
pub mod store;
pub mod table;

pub use config::{LoadedConfig, SessionConfig};
pub use pellucid_models::{Error, Result};
pub use session::{RunOptions, Session};
pub use store::Store;
