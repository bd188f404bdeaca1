//! Extraction of steering vectors from contrastive pairs of prompts.
//!
//! 1. [`parse_pairs`] reads the pairs; [`Pair::encode`] turns them into tokens.
//! 2. `activations` runs all prompts in batches and keeps one activation vector per prompt and
//!    layer.
//! 3. `method` computes the direction of a layer from these vectors: the difference of means, or
//!    the first principal component (`principal`) of the paired differences.
//! 4. `quality` measures how well each direction separates positive from negative prompts, so that
//!    the caller can choose layers.
//!
//! [`extract`] does all of it. Conventions follow `repeng` and `steering-vectors`, whose results
//! the tests compare (tests/steering): directions point from negative to positive examples,
//! principal components have length 1, differences of means keep theirs.

mod activations;
mod extract;
mod method;
mod pairs;
mod principal;
mod quality;

pub use activations::Activations;
pub use extract::{ExtractOptions, Extraction, extract};
pub use method::{Direction, Method, find_direction};
pub use pairs::{Pair, Prompt, parse_pairs};
pub use quality::{LayerQuality, measure_quality};
