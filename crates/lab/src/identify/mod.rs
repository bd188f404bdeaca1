//! The suite `identify`: latency and correctness of recognizing, inspecting and loading models.
//!
//! A [`Benchmark`] is a row of a table: a [`Query`] on a model directory, with its expected answer.
//! [`measure`](mod@measure) runs the queries in rounds and keeps the times of correct answers only.
//! [`gates`] are latency and memory limits, [`compare`](mod@compare) compares with a baseline,
//! [`result`] is the file format and [`report`](mod@report) the page. Measuring needs a counting
//! allocator and a local hub, so it runs in `pellucid-lab-worker`, which `pellucid lab identify`
//! starts.

mod benchmarks;
pub mod compare;
pub mod directories;
pub mod gates;
pub mod measure;
mod queries;
pub mod report;
pub mod result;

pub use benchmarks::{Benchmark, find_model, select_benchmarks};
pub use queries::{Query, QueryInput, Stopwatch, hub_files};

use serde::{Deserialize, Serialize};

/// The name of this suite.
pub const NAME: &str = "identify";
/// Its former name, still accepted.
pub const OLD_NAME: &str = "loader";
/// One-line description.
pub const TITLE: &str = "Model inspection: latency and correctness of category, support and metadata queries";

/// A local hub to download from.
pub struct Hub {
    /// Base URL.
    pub endpoint: String,
    /// Id of its only model, whose files are [`hub_files`].
    pub model: String,
}

/// Category of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Architecture, category, and whether a model is multimodal ("omni").
    Detection,
    /// Sparse autoencoders.
    Sae,
    /// Loading tokenizers: present, missing, taken from a base model, downloaded.
    Tokenizer,
    /// Whether a model is supported.
    Support,
    /// Allocations of queries.
    Memory,
    /// Queries of different depth on the same directory, and the choice of loading strategy.
    Comparison,
    /// Configurations from small to very large.
    Architecture,
    /// Queries tracked for regressions.
    Regression,
    /// Loading weights, concurrency, errors, and a real model.
    Loading,
}

impl Category {
    /// All categories, with their names in JSON and on the command line and their titles in the
    /// report.
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

    /// Returns the category of a name.
    pub fn from_name(name: &str) -> Option<Category> {
        Category::ALL.iter().find(|(_, known, _)| *known == name).map(|(category, ..)| *category)
    }
}
