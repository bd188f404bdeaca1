//! Loads models: from a model directory or GGUF file to a [`LoadedModel`] with its tokenizer.
//!
//! The stages of a load, from the files to [`LoadedModel`]:
//!
//! | module | task |
//! |---|---|
//! | [`source`] | source of a model (built-in, directory, GGUF): configuration, tensors, tokenizer, chat template |
//! | `category` | what a directory or file is: by its files, the keys of its configuration, its tensor names |
//! | [`checkpoint`], [`gguf`] | file formats; every length in a file is checked before it is used |
//! | [`select_family`](mod@select_family), [`attempt`] | selects the family and the strategy; records the outcome of each strategy |
//! | [`config`], [`families`] | `config.json` → architecture and table of names; one function per family |
//! | [`tensors`], [`quantized`] | stored tensors under the names that Hugging Face uses; quantized layers presented as f32 tensors |
//! | [`names`], [`name_variants`] | maps weights to stored tensors; known variants of names, each match counted and reported |
//! | [`load`](mod@load), [`adapter`] | finds, checks and packs weights; merges adapters |
//! | [`forecast`](mod@forecast) | what a load will give and take, from headers alone |
//! | [`share`] | weight sharing between loads of one process |
//! | [`tokenizer`], [`chat`] | text to tokens and back |
//! | [`text`] | text of generated rows: pieces, stop strings |
//! | [`model`] | [`LoadedModel`]: all of the above together |
//! | [`outline`], [`wire`] | models that run on a server: everything but the weights; calls and results as bytes |
//!
//! Also: [`sae`], sparse autoencoders in every published format; [`steer`], steering vectors in
//! files; [`builtin`], the built-in model; [`pull`], downloads by name; [`output`], files of
//! results; [`python`], which starts interpreters; [`inspect`](mod@inspect), which reports what a
//! directory or file is and whether it would run, without loading it.

pub mod adapter;
pub mod attach;
pub mod attempt;
pub mod builtin;
mod category;
pub mod chat;
pub mod checkpoint;
mod compare;
pub mod config;
mod error;
pub mod escape;
pub mod families;
pub mod files;
pub mod forecast;
pub mod gguf;
mod header;
pub mod inspect;
mod json;
mod listing;
pub mod load;
mod load_tokenizer;
mod mapped;
pub mod model;
pub mod name_variants;
pub mod names;
pub mod outline;
pub mod output;
pub mod prepare;
pub mod pull;
pub mod python;
pub mod quantized;
mod quiet;
pub mod results;
mod rope;
pub mod sae;
pub mod select_family;
pub mod share;
pub mod source;
pub mod steer;
pub mod tensors;
pub mod text;
pub mod tokenizer;
mod tuning;
pub mod wire;

#[doc(hidden)]
pub use attempt::AttemptOutcome as Outcome;
pub use attempt::{Attempt, AttemptOutcome, Strategy};
pub use error::{Error, Result};
pub use forecast::{Forecast, forecast};
pub use inspect::{Report, inspect, inspect_as, strategies};
pub use load::{LoadOptions, Storage};
pub use load_tokenizer::{load_tokenizer, tokenizer_of};
pub use model::{LoadedModel, TextPiece, locate, program_of};
pub use name_variants::NameVariant;
#[doc(hidden)]
pub use name_variants::NameVariant as Repair;
pub use prepare::{capture_taps, file_reference, prepare, prepare_chats};
pub use select_family::{SelectedFamily, select_family};
pub use source::ModelSource;
pub use text::{RequestText, RowText, StopStrings};
