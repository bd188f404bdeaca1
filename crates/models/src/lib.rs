//! From a model directory or GGUF file to a running model with its tokenizer.
//!
//! | module | its part |
//! |---|---|
//! | [`checkpoint`], [`gguf`] | the files: every length checked before it is believed |
//! | [`tensors`] | both, under the names that Hugging Face uses |
//! | [`config`], [`families`] | `config.json` → architecture and table of names; one function a family |
//! | [`identify`] | quick answers: what is this, does its family run here; types that stand for a family |
//! | [`inspect`](mod@inspect) | everything that a directory or file tells without being loaded |
//! | [`assume`] | models of unknown types: which native family fits them |
//! | [`quantised`] | quantised layers made to look like ordinary ones |
//! | [`adapter`] | small weights that are merged into a model's as they are loaded |
//! | [`names`], [`load`](mod@load) | which stored tensor is which weight; found, checked, packed |
//! | [`repair`] | known variants of names, each application told |
//! | [`strategy`] | the ways to load a model, in their order, and what became of each |
//! | [`share`] | weights that several loads share |
//! | [`tokenizer`], [`chat`] | text to tokens and back |
//! | [`builtin`] | the model inside this program |
//! | [`pull`] | models by name |
//! | [`model`] | all of it together: [`LoadedModel`] |

pub mod adapter;
pub mod assume;
pub mod builtin;
pub mod chat;
pub mod checkpoint;
mod compare;
pub mod config;
mod error;
pub mod families;
pub mod gguf;
mod header;
pub mod identify;
pub mod inspect;
mod json;
mod listing;
pub mod load;
pub mod model;
pub mod names;
pub mod prepare;
pub mod pull;
pub mod quantised;
pub mod repair;
mod rope;
pub mod share;
pub mod strategy;
pub mod tensors;
pub mod tokenizer;

pub use error::{Error, Result};
pub use inspect::{Report, inspect, inspect_as};
pub use load::Storage;
pub use model::{LoadOptions, LoadedModel, locate, program_of, tokenizer_of};
pub use prepare::prepare;
pub use repair::Repair;
pub use strategy::{Attempt, Outcome, Strategy, load_with_strategies, strategies};
pub use tokenizer::load_tokenizer;
