//! The JSON protocol between the lab and its workers.
//!
//! A worker is a process that reads one [`Request`] from stdin, runs the job, writes one [`Answer`]
//! to stdout and exits. A fresh process shares no caches, threads or allocator state with any other
//! measurement.

use crate::json_float;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A job for a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Directory or GGUF file.
    pub model: PathBuf,
    /// In-memory dtype of the weights: `auto` (as stored), `f32`, `bf16`, `f16` or `q8`.
    pub dtype: String,
    /// Number of threads; the engine's default if absent.
    pub threads: Option<usize>,
    /// Family to assume for a model of an unknown type.
    #[serde(default)]
    pub assume: Option<String>,
    /// The job to measure.
    pub job: Job,
    /// A second job, measured alternately with the first in the same process.
    #[serde(default, rename = "beside", skip_serializing_if = "Option::is_none")]
    pub paired_job: Option<Job>,
    /// Token ids of the prompt.
    pub tokens: Vec<u32>,
    /// Untimed runs before the timed ones.
    pub warmups: usize,
    /// Timed runs.
    pub repeats: usize,
}

/// The task that a worker times. `resid_post` of "the middle layer" is that of layer n_layers / 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// One forward pass, logits of the last position.
    Prefill,
    /// One forward pass, logits of every position.
    Forward,
    /// Greedy decoding after the prompt. The time is that of one step of all rows.
    Decode {
        /// New tokens.
        steps: usize,
        /// Batch size. Each row is the prompt rotated by one more token.
        #[serde(default = "default_rows", skip_serializing_if = "is_default_rows")]
        rows: usize,
    },
    /// A prefill that captures every layer's `resid_post`.
    Capture,
    /// A prefill that captures `resid_post` of the first layers.
    CaptureLayers {
        /// Number of layers.
        layers: usize,
    },
    /// A prefill with a plan whose only tap matches no position (the cost of having a plan).
    #[serde(rename = "armed")]
    NoOpTap,
    /// Greedy decoding under such a plan. The time is that of one step.
    #[serde(rename = "armed_decode")]
    NoOpTapDecode {
        /// New tokens.
        steps: usize,
    },
    /// A prefill that adds a fixed vector to the middle layer's `resid_post` at every position.
    Steer,
    /// Greedy decoding with that vector added at every step. The time is that of one step.
    SteerDecode {
        /// New tokens.
        steps: usize,
    },
    /// Greedy decoding that captures every layer's `resid_post` at every step. The time is that of
    /// one step.
    CaptureDecode {
        /// New tokens.
        steps: usize,
    },
    /// A prefill that zeroes the middle layer's MLP activations.
    Ablate,
    /// A prefill that captures the middle layer's attention pattern.
    Pattern,
    /// Logit lens: final norm and unembedding of every layer's residual stream at the last
    /// position.
    Lens,
    /// Activation patching between a prompt and its reverse: the first row's middle `resid_post` at
    /// the last position replaces the second row's.
    Patch,
    /// Attribution patching between the same two prompts: per position, the difference of the rows'
    /// middle `resid_post` times the gradient, in the second row, of the last position's logit for
    /// that row's first token.
    Attribute,
    /// A forward pass of four rows of 50 to 160 tokens, logits of the last position, with the
    /// reconstructions of the model's first SAEs spliced in. The model is `gpt2-shaped`.
    Splice {
        /// Number of SAEs; with 0, the plain model.
        saes: usize,
    },
}

/// Lengths of the rows of [`Job::Splice`].
pub(crate) const SPLICE_LENGTHS: [usize; 4] = [50, 87, 123, 160];

fn default_rows() -> usize {
    1
}

fn is_default_rows(rows: &usize) -> bool {
    *rows == 1
}

impl Job {
    /// Returns the number of decode steps, if the job decodes.
    pub fn steps(self) -> Option<usize> {
        match self {
            Job::Decode { steps, .. }
            | Job::NoOpTapDecode { steps }
            | Job::SteerDecode { steps }
            | Job::CaptureDecode { steps } => Some(steps),
            _ => None,
        }
    }

    /// Returns the number of SAEs that the job splices in.
    pub(crate) fn saes(self) -> usize {
        match self {
            Job::Splice { saes } => saes,
            _ => 0,
        }
    }
}

/// Returns a fixed prompt of `tokens` token ids. Neighbors differ, and the ids stay below 96, the
/// vocabulary size of the smallest test model.
pub(crate) fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| (20 + i * 37 % 73) as u32).collect()
}

/// A worker's measurements and outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Library and version.
    pub engine: String,
    /// Seconds from the start of loading to the first token's logits, measured once.
    pub load_to_first_token_s: f64,
    /// Seconds of the timed runs, in order.
    pub samples_s: Vec<f64>,
    /// Peak RSS of the process, from the kernel.
    pub peak_bytes: u64,
    /// Memory per phase, if the worker reports it.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// Heap allocations of one run, if counting was requested.
    #[serde(default)]
    pub allocations: Option<Allocations>,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Top five next tokens of the prompt with their logits. Compared with the oracle's.
    #[serde(with = "json_float::pairs")]
    pub top: Vec<(u32, f32)>,
    /// Decoded tokens of the first row, for decode jobs.
    #[serde(default)]
    pub decoded: Vec<u32>,
    /// The first values of the job's output. Compared with the oracle's.
    #[serde(default, with = "json_float::list")]
    pub values: Vec<f32>,
    /// The job's output without its edit, to detect edits without effect.
    #[serde(default, with = "json_float::list")]
    pub control: Vec<f32>,
    /// Measurements and outputs of the paired job.
    #[serde(default, rename = "beside", skip_serializing_if = "Option::is_none")]
    pub paired_answer: Option<Box<Answer>>,
}

/// Peak memory per phase and memory held at the end, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Peak while loading, including the first forward pass.
    pub load: u64,
    /// Peak during warm-up and timed runs.
    pub run: u64,
    /// At the end: anonymous memory (not backed by a file).
    pub anonymous: u64,
    /// At the end: mapped files.
    pub file: u64,
    /// At the end: proportional set size; 0 if not available.
    pub proportional: u64,
}

/// Heap allocations of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocations {
    /// Number of allocations.
    pub count: u64,
    /// Total bytes allocated.
    pub bytes: u64,
    /// Peak of live bytes above those live before the run.
    pub peak_live: u64,
}
