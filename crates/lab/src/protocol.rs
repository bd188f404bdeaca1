//! What workers are asked and what they answer.
//!
//! A worker is a process that reads one [`Request`] as JSON from stdin, does the job, writes one [`Answer`] as JSON to stdout and
//! ends. Being fresh, it shares no caches, threads or allocator state with any other measurement.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A job for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Directory or GGUF file.
    pub model: PathBuf,
    /// How weights are kept: `auto`, `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Threads to use; the default where absent.
    pub threads: Option<usize>,
    /// The family that a model of an unknown type is read as.
    #[serde(default)]
    pub assume: Option<String>,
    /// What to measure.
    pub job: Job,
    /// The input.
    pub tokens: Vec<u32>,
    /// Untimed runs first.
    pub warmups: usize,
    /// Timed runs.
    pub repeats: usize,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// One forward pass, logits of the last position.
    Prefill,
    /// One forward pass, logits of every position.
    Forward,
    /// Greedy decoding of this many tokens after the prompt; the time is that of one step.
    Decode {
        /// New tokens.
        steps: usize,
    },
    /// One forward pass that captures every layer's `resid_post`, logits of the last position.
    Capture,
}

/// What a worker found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Who measured, with its version.
    pub engine: String,
    /// From the start of loading to the first token's logits, once.
    pub load_to_first_token_s: f64,
    /// The timed runs, in order.
    pub samples_s: Vec<f64>,
    /// The most memory the process held, from the system's own count.
    pub peak_bytes: u64,
    /// Bytes of the weights as this engine keeps them.
    pub weight_bytes: u64,
    /// The five likeliest next tokens after the input with their logits: both sides must agree on them.
    pub top: Vec<(u32, f32)>,
    /// Tokens decoded, for decode jobs.
    pub decoded: Vec<u32>,
}
