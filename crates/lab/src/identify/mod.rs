//! The suite `identify`: latency and correctness of recognizing, inspecting and loading models.
//!
//! A [`Benchmark`] is a row of data: a question about a directory, with the answer that it must get. [`measure`](mod@measure) asks in rounds
//! and keeps the times of right answers only; [`gates`] says which are too long, [`compare`](mod@compare) how they changed since a baseline,
//! [`result`] is the file and [`report`](mod@report) the page. Measuring needs a counting allocator and a hub to download from, so it
//! runs in `pellucid-lab-worker`; `pellucid lab identify` starts that and reports what it answers.

mod benchmarks;
pub mod compare;
pub mod directories;
pub mod gates;
pub mod measure;
mod questions;
pub mod report;
pub mod result;

pub use benchmarks::{Benchmark, chosen, find_model};
pub use questions::{Case, Question, Stopwatch, hub_files};

use serde::{Deserialize, Serialize};

/// The name of this suite.
pub const NAME: &str = "identify";
/// Its earlier name, which is still accepted.
pub const OLD_NAME: &str = "loader";
/// What it is about.
pub const TITLE: &str = "Model inspection: latency and correctness of category, support and metadata queries";

/// A local hub to download from.
pub struct Hub {
    /// Its address.
    pub endpoint: String,
    /// The model that it has, with [`hub_files`].
    pub model: String,
}

/// What a benchmark is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Architecture, category, whether a model is omni.
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
    /// All of them, with their names in JSON and on the command line and their titles in the report.
    pub const ALL: [(Category, &str, &str); 9] = [
        (Category::Detection, "detection", "Architecture and Category Detection"),
        (Category::Sae, "sae", "SAE Detection"),
        (Category::Tokenizer, "tokenizer", "Tokenizer Loading"),
        (Category::Support, "support", "Support Checking"),
        (Category::Memory, "memory", "Memory Profiling"),
        (Category::Comparison, "comparison", "Loading Strategy Comparison"),
        (Category::Architecture, "architecture", "Architecture Variation"),
        (Category::Regression, "regression", "Regression Tests"),
        (Category::Loading, "loading", "Loading, Concurrency and Errors"),
    ];

    /// The category of a name.
    pub fn from_name(name: &str) -> Option<Category> {
        Category::ALL.iter().find(|(_, known, _)| *known == name).map(|(category, ..)| *category)
    }
}
