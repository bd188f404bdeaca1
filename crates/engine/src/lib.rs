//! The engine of Pellucid: programs, sites, plans, the executor and generation.

mod error;

pub use error::{Error, Result};
