//! How fast the loader answers, and whether it answers rightly: the suite `loader`.
//!
//! A [`Benchmark`] is a question with the answer that it must get (`registry`, `planned`, `real`), asked of directories that the
//! suite makes itself (`fixtures`). [`measure`](mod@measure) asks in rounds and keeps the times of right answers only; [`gates`] says which are
//! too long, [`against`] how they changed since a baseline, [`result`] is the file and [`report`](mod@report) the page.

pub mod against;
mod bench;
mod configs;
pub mod fixtures;
pub mod gates;
mod gguf;
pub mod measure;
mod planned;
pub mod real;
pub mod registry;
pub mod report;
pub mod result;
pub mod settings;
mod ways;

pub use bench::{Benchmark, Sample};

use serde::{Deserialize, Serialize};

/// The name of this suite.
pub const NAME: &str = "loader";
/// What it is about.
pub const TITLE: &str = "What is this directory, and can it run? How fast that is answered, and how rightly";

/// What a benchmark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Architecture, category, omni-ness.
    Detection,
    /// Sparse autoencoders.
    Sae,
    /// Tokenizers: found, missing, another model's, from a hub.
    Tokenizer,
    /// Whether a model runs here.
    Support,
    /// What answers allocate.
    Memory,
    /// The same directory asked little and much.
    Comparison,
    /// Configurations from small to very large.
    Architecture,
    /// Answers that must not become slower.
    Regression,
    /// Weights, several threads at once, errors, a real model.
    Loading,
}

impl Category {
    /// All of them.
    pub const ALL: [Category; 9] = [
        Category::Detection,
        Category::Sae,
        Category::Tokenizer,
        Category::Support,
        Category::Memory,
        Category::Comparison,
        Category::Architecture,
        Category::Regression,
        Category::Loading,
    ];

    /// Its name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Category::Detection => "detection",
            Category::Sae => "sae",
            Category::Tokenizer => "tokenizer",
            Category::Support => "support",
            Category::Memory => "memory",
            Category::Comparison => "comparison",
            Category::Architecture => "architecture",
            Category::Regression => "regression",
            Category::Loading => "loading",
        }
    }

    /// The category of a name.
    pub fn from_name(name: &str) -> Option<Category> {
        Category::ALL.into_iter().find(|category| category.name() == name)
    }
}
