//! From a model directory or GGUF file to a running model with its tokenizer.

mod error;

pub use error::{Error, Result};
