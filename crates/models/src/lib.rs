//! From a model directory or GGUF file to a running model with its tokenizer.
//!
//! The path that every model takes, from the files to [`LoadedModel`]:
//!
//! | module | its part |
//! |---|---|
//! | [`source`] | where a model comes from (built-in, directory, GGUF): configuration, tensors, tokenizer, chat template |
//! | [`checkpoint`], [`gguf`] | the files: every length checked before it is believed |
//! | [`select_family`](mod@select_family), [`attempt`] | which family reads it, by which strategy, and what became of the others |
//! | [`config`], [`families`] | `config.json` → architecture and table of names; one function a family |
//! | [`tensors`], [`quantised`] | stored tensors under the names that Hugging Face uses; quantised layers made to look like ordinary ones |
//! | [`names`], [`repair`] | which stored tensor is which weight; known variants of names, each use counted and reported |
//! | [`load`](mod@load), [`adapter`] | weights found, checked, packed; adapters merged into them on the way |
//! | [`share`] | weights that several loads share |
//! | [`tokenizer`], [`chat`] | text to tokens and back |
//! | [`model`] | all of it together: [`LoadedModel`] |
//!
//! Beside it: [`builtin`], the model inside this program; [`pull`], models by name; [`inspect`](mod@inspect), what a directory or file
//! is and whether it would run, without loading it.

pub mod adapter;
pub mod attempt;
pub mod builtin;
pub mod chat;
pub mod checkpoint;
mod compare;
pub mod config;
mod error;
pub mod families;
pub mod gguf;
mod header;
pub mod inspect;
mod json;
mod listing;
pub mod load;
mod load_tokenizer;
pub mod model;
pub mod names;
pub mod prepare;
pub mod pull;
pub mod quantised;
pub mod repair;
mod rope;
pub mod select_family;
pub mod share;
pub mod source;
pub mod tensors;
pub mod tokenizer;

pub use attempt::{Attempt, Outcome, Strategy};
pub use error::{Error, Result};
pub use inspect::{Report, inspect, inspect_as};
pub use load::{LoadOptions, Storage};
pub use load_tokenizer::{load_tokenizer, tokenizer_of};
pub use model::{LoadedModel, locate, program_of};
pub use prepare::prepare;
pub use repair::Repair;
pub use select_family::{SelectedFamily, select_family, strategies};
pub use source::ModelSource;
