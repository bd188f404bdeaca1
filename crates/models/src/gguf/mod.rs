//! GGUF files: configuration, tokenizer and (usually quantized) weights in a single file.
//!
//! The rest of this crate works on Hugging Face directories. This module presents a GGUF file as
//! one, so that no family needs a second loader:
//!
//! - `header` checks every count and length in the file; [`GgufFile`] then gives access to metadata
//!   ([`Value`]) and tensors.
//! - [`hf_config`] translates the metadata to the equivalent `config.json`; `rope` does the rotary
//!   part.
//! - [`hf_names`] maps each tensor to its name in the original checkpoint and reports how the
//!   converter reordered its rows ([`RowOrder`]).
//! - `tokenizer` rebuilds the tokenizer, and [`special_tokens`] reads the bos, eos
//!   and other special ids; `pre_tokenizer` has the split patterns by their names in the file.
//! - `writer` writes files: control vectors, and models for tests.
//!
//! Decoding of each [`Encoding`](pellucid_kernels::encoding::Encoding) is in the kernels crate.

mod arch_metadata;
mod config;
mod families;
mod header;
mod names;
mod pre_tokenizer;
mod reader;
mod rope;
mod special;
#[cfg(test)]
mod testing;
mod tokenizer;
mod value;
mod writer;

/// Metadata key of the tokenizer's model (`gpt2`, `llama`, …).
pub(crate) const TOKENIZER_MODEL: &str = "tokenizer.ggml.model";

pub use config::hf_config;
pub use names::{RowOrder, hf_names, ignored};
pub use reader::{GgufFile, Tensor};
pub use special::{GgufSpecialTokens, special_tokens};
pub(crate) use tokenizer::tokenizer;
pub use value::{List, Value, ValueKind};
pub(crate) use writer::Writer;
