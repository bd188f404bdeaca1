//! GGUF files: one file that holds configuration, tokenizer and (usually quantised) weights.
//!
//! The rest of this crate knows one kind of model, the Hugging Face directory. This folder makes a GGUF file look like
//! one, so that no family has a second loader:
//!
//! - `header` checks every count and length in the file; [`GgufFile`] then gives metadata ([`Value`]) and tensors.
//! - [`hf_config`] translates the metadata to what would be `config.json`; `rope` does the part on rotary frequencies.
//! - [`hf_names`] gives each tensor the name it has in the checkpoint that the file was converted from, and says how
//!   the converter reordered its rows ([`RowOrder`]).
//! - [`tokenizer`](tokenizer()) rebuilds the tokenizer, and [`special_tokens`] tells which ids begin and end texts;
//!   `pre` holds the split patterns by their names in the file.
//!
//! What an [`Encoding`](pellucid_kernels::encoding::Encoding) means is the business of the kernels crate.

mod config;
mod facts;
mod families;
mod header;
mod names;
mod pre;
mod reader;
mod rope;
mod special;
#[cfg(test)]
mod testing;
mod tokenizer;
mod value;

/// The key that says of which kind a file's tokenizer is.
pub(crate) const TOKENIZER_MODEL: &str = "tokenizer.ggml.model";

pub use config::hf_config;
pub use names::{RowOrder, hf_names, ignored};
pub use reader::{GgufFile, Tensor};
pub use special::{SpecialTokens, special_tokens};
pub use tokenizer::tokenizer;
pub use value::{List, Value, ValueKind};
