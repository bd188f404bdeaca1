//! What workers are asked and what they answer.
//!
//! A worker is a process that reads one [`Request`] as JSON from stdin, does the job, writes one [`Answer`] as JSON to stdout and
//! ends. Being fresh, it shares no caches, threads or allocator state with any other measurement.

use crate::number;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A job for a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Another job to measure in turn with it, in the same process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Job>,
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
    /// Greedy decoding of this many tokens after the prompt; the time is that of one step of all rows.
    Decode {
        /// New tokens.
        steps: usize,
        /// Rows that are decoded together: each begins one token later in the prompt, and goes on from its start.
        #[serde(default = "one_row", skip_serializing_if = "is_one_row")]
        rows: usize,
    },
    /// A prefill that captures every layer's `resid_post`.
    Capture,
    /// A prefill that captures `resid_post` of the first layers.
    CaptureLayers {
        /// How many.
        layers: usize,
    },
    /// A prefill with a plan whose only tap applies to no position.
    Armed,
    /// Greedy decoding of this many tokens under such a plan; the time is that of one step.
    ArmedDecode {
        /// New tokens.
        steps: usize,
    },
    /// A prefill that adds a vector to the middle layer's `resid_post` at every position.
    Steer,
    /// Greedy decoding of this many tokens while that vector is added at every step; the time is that of one step.
    SteerDecode {
        /// New tokens.
        steps: usize,
    },
    /// Greedy decoding of this many tokens while every layer's `resid_post` is captured at every step; the time is that of one step.
    CaptureDecode {
        /// New tokens.
        steps: usize,
    },
    /// A prefill that sets the neurons of the middle layer's MLP to zero.
    Ablate,
    /// A prefill that captures the attention weights of the middle layer.
    Pattern,
    /// The logit lens: every layer's stream at the last position through the final norm and the head.
    Lens,
    /// Two prompts, the second the first backwards; the first row's middle `resid_post` at the last position is put into the second.
    Patch,
    /// Attribution patching between the same two prompts: for each position the middle `resid_post` of the first minus that of the
    /// second, times the gradient there of the second's last logit of its own first token.
    Attribute,
}

fn one_row() -> usize {
    1
}

fn is_one_row(rows: &usize) -> bool {
    *rows == 1
}

impl Job {
    /// The new tokens of a job that decodes.
    pub fn steps(self) -> Option<usize> {
        match self {
            Job::Decode { steps, .. }
            | Job::ArmedDecode { steps }
            | Job::SteerDecode { steps }
            | Job::CaptureDecode { steps } => Some(steps),
            _ => None,
        }
    }
}

/// The tokens of a prompt: any fixed ones do, if neighbors differ and every vocabulary has them. The smallest test model has 96.
pub(crate) fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| (20 + i * 37 % 73) as u32).collect()
}

/// What a worker found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Who measured, with its version.
    pub engine: String,
    /// From the start of loading to the first token's logits, once.
    pub load_to_first_token_s: f64,
    /// The timed runs, in order.
    pub samples_s: Vec<f64>,
    /// The most memory the process held, from the system's own count.
    pub peak_bytes: u64,
    /// The memory of its phases, where the worker tells.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// Heap allocations of one timed run, from a worker that was asked to count.
    #[serde(default)]
    pub allocations: Option<Allocations>,
    /// Bytes of the weights as this engine keeps them.
    pub weight_bytes: u64,
    /// The five likeliest next tokens after the input with their logits: both sides must agree on them.
    #[serde(with = "number::pairs")]
    pub top: Vec<(u32, f32)>,
    /// Tokens decoded, for decode jobs.
    #[serde(default)]
    pub decoded: Vec<u32>,
    /// What the job itself made, cut to its first numbers: both sides must agree on them, too.
    #[serde(default, with = "number::list")]
    pub values: Vec<f32>,
    /// The same job without its edit, so that an edit that does nothing is noticed.
    #[serde(default, with = "number::list")]
    pub control: Vec<f32>,
    /// The same of the job beside, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Box<Answer>>,
}

/// Bytes at the highest in each phase, and what the process holds at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// While loading, the first forward pass included.
    pub load: u64,
    /// While warming up and measuring.
    pub run: u64,
    /// At the end: not backed by a file.
    pub anonymous: u64,
    /// At the end: mapped files.
    pub file: u64,
    /// At the end: its share of everything, where the system tells.
    pub proportional: u64,
}

/// Heap allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocations {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes alive at the highest, above what was alive before.
    pub peak_live: u64,
}
