//! The file format: the original benchmark's keys, and everything needed to trust them.

use super::findings::Finding;
use super::mode::Mode;
use super::overhead::{Bar, LayerFit, Overhead};
use super::peer::PeerResult;
use super::request::{SHORTEST, WorkloadSize};
use crate::environment::Environment;
use crate::stats::{mean, median, median_absolute_deviation};
use serde::{Deserialize, Serialize};

/// The version of the format of one mode's file.
pub const MODE_SCHEMA: &str = "pellucid/lab-capture-mode/v1";
/// Its JSON Schema.
pub const MODE_SCHEMA_TEXT: &str = include_str!("../../schema/lab-capture-mode-v1.json");
/// The version of the format of a whole suite's file.
pub const SUITE_SCHEMA: &str = "pellucid/lab-capture/v1";

/// One generation of all requests. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of the iteration, from 1.
    pub iteration: usize,
    /// From the first submission to the end of the last request.
    pub generation_time: f64,
    /// From there until the caller owns a copy of every captured array.
    pub fetch_time: f64,
    /// Sum of both.
    pub total_time: f64,
    /// `batch · (prefill + decode) / generation_time`, with counted tokens.
    pub throughput_tokens_per_sec: f64,
    /// Number of the process, from 1.
    #[serde(default)]
    pub process: usize,
    /// CPU time of all threads during the generation.
    #[serde(default)]
    pub cpu_time: f64,
    /// Prompt tokens per second, in passes that have only prompt tokens.
    #[serde(default)]
    pub prefill_tokens_per_sec: f64,
    /// New tokens per second, in passes that only decode.
    #[serde(default)]
    pub decode_tokens_per_sec: f64,
    /// Time of the generation outside passes: admission, delivery of tokens, waiting.
    #[serde(default)]
    pub outside_passes_time: f64,
    /// Mean number of requests per pass.
    #[serde(default)]
    pub mean_concurrency: f64,
    /// Largest number of requests in a pass.
    #[serde(default)]
    pub max_concurrency: usize,
    /// The parts of `fetch_time`.
    #[serde(default)]
    pub fetch: FetchTimes,
}

/// The parts of a fetch, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FetchTimes {
    /// Receiving the finished requests with their captures, without a copy. Python pays only this:
    /// its arrays borrow the captures.
    pub hand_over: f64,
    /// Copying every captured array to fresh memory of the caller.
    pub copy: f64,
    /// Writing the arrays to a file, if requested; not part of `fetch_time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<f64>,
}

/// Token counts of one request, as they happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestTokens {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// New tokens.
    pub generated: usize,
    /// Captured positions at each layer.
    pub captured_positions: usize,
    /// Prompt tokens taken from a prefix cache.
    pub reused: usize,
}

/// Where the time of a generation goes, from profiled iterations without and with the plan in one
/// process. In seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSplit {
    /// Ops of the forward passes, without the plan's part.
    pub forward: f64,
    /// Difference of the ops that produce captured activations, with and without the plan: copies
    /// into capture buffers.
    pub copy: f64,
    /// Time outside ops: scheduling, sampling, allocation of buffers.
    pub outside_ops: f64,
    /// The same without the plan.
    pub outside_ops_without_plan: f64,
}

/// A worker's answer: the iterations of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureRun {
    /// Library and version.
    pub engine: String,
    /// Timed iterations.
    pub iterations: Vec<Iteration>,
    /// New tokens of every request, the same in every iteration.
    pub tokens: Vec<Vec<u32>>,
    /// Token counts of every request.
    #[serde(default)]
    pub requests: Vec<RequestTokens>,
    /// Captured arrays whose shape, positions and elements were checked, in all iterations.
    #[serde(default)]
    pub rows_checked: usize,
    /// Bytes of the captures of one iteration.
    pub captured_bytes: u64,
    /// Peak RSS during the iterations.
    pub peak_bytes: u64,
    /// RSS before the iterations: weights and runtime.
    #[serde(default)]
    pub resident_bytes: u64,
    /// One captured vector, compared with the peers': the middle captured layer of the first
    /// request, at the last prompt position.
    #[serde(default, with = "crate::json_float::list")]
    pub sample: Vec<f32>,
    /// Whether the first request's captures have the bits of one forward pass over its whole text.
    #[serde(default)]
    pub equals_forward_pass: Option<bool>,
    /// Where the time went, if profiled.
    #[serde(default)]
    pub split: Option<TimeSplit>,
    /// Wrong token counts, shapes, positions or elements.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// Statistics over the iterations of a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean generation time.
    pub mean_generation_time: f64,
    /// Mean fetch time.
    pub mean_fetch_time: f64,
    /// Mean total time.
    pub mean_total_time: f64,
    /// Shortest generation.
    pub min_generation_time: f64,
    /// Longest generation.
    pub max_generation_time: f64,
    /// Median generation time.
    pub median_generation_time: f64,
    /// Median absolute deviation of the generation times.
    pub mad_generation_time: f64,
    /// Median CPU time.
    pub median_cpu_time: f64,
    /// Median prefill rate.
    pub prefill_tokens_per_sec: f64,
    /// Median decode rate.
    pub decode_tokens_per_sec: f64,
}

impl Summary {
    /// Computes the statistics.
    pub fn of(iterations: &[Iteration]) -> Summary {
        let all = |value: fn(&Iteration) -> f64| iterations.iter().map(value).collect::<Vec<f64>>();
        let generation = all(|i| i.generation_time);
        Summary {
            mean_generation_time: mean(&generation),
            mean_fetch_time: mean(&all(|i| i.fetch_time)),
            mean_total_time: mean(&all(|i| i.total_time)),
            min_generation_time: generation.iter().copied().fold(f64::INFINITY, f64::min),
            max_generation_time: generation.iter().copied().fold(0.0, f64::max),
            median_generation_time: median(&generation),
            mad_generation_time: median_absolute_deviation(&generation),
            median_cpu_time: median(&all(|i| i.cpu_time)),
            prefill_tokens_per_sec: median(&all(|i| i.prefill_tokens_per_sec)),
            decode_tokens_per_sec: median(&all(|i| i.decode_tokens_per_sec)),
        }
    }
}

/// Bytes of the captures, counted and computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedBytes {
    /// Bytes of the arrays that came out.
    pub observed: u64,
    /// `batch · layers · (prefill + decode − 1) · width · bytes per element`.
    pub predicted: u64,
    /// Bytes per element.
    pub bytes_per_element: usize,
}

/// The file of one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureResult {
    /// The format, [`MODE_SCHEMA`].
    pub schema: String,
    /// The mode.
    pub mode: Mode,
    /// The model's name or path.
    pub model: String,
    /// Number of requests.
    pub batch_size: usize,
    /// Tokens of each prompt, of the longest one if they are mixed; `requests` has all.
    pub prefill_tokens: usize,
    /// New tokens of each request, the most if they are mixed.
    pub decode_tokens: usize,
    /// Whether the requests have random lengths up to these.
    pub mixed_lengths: bool,
    /// Layers of the model.
    pub total_layers: usize,
    /// Captured layers.
    pub capture_layers: Vec<usize>,
    /// Their number.
    pub num_captured_layers: usize,
    /// All timed iterations, of all processes.
    pub iterations: Vec<Iteration>,
    /// Their statistics.
    pub summary: Summary,
    /// Processes of this mode.
    pub processes: usize,
    /// Token counts of every request.
    pub requests: Vec<RequestTokens>,
    /// Captured arrays that were checked.
    pub rows_checked: usize,
    /// Counted and computed bytes of the captures of one iteration.
    pub captured_bytes: CapturedBytes,
    /// FNV-1a hash of all new tokens.
    pub output_digest: String,
    /// Whether the first request's captures have the bits of one forward pass over its whole text.
    pub equals_forward_pass: Option<bool>,
    /// Largest peak RSS.
    pub peak_memory_bytes: u64,
    /// RSS of the weights and the runtime, before the iterations.
    pub resident_bytes: u64,
    /// Largest number of requests in a pass.
    pub true_concurrency: usize,
    /// State of the prefix cache: always off, so that every iteration computes every position.
    pub prefix_cache: String,
    /// Where the time went, if profiled.
    pub time_split: Option<TimeSplit>,
    /// Problems found.
    pub problems: Vec<String>,
    /// The machine, the build and the model.
    pub environment: Environment,
}

impl CaptureResult {
    /// Joins the processes of a mode. `runs` must not be empty.
    pub fn new(
        mode: Mode,
        model: &str,
        size: WorkloadSize,
        (layers, depth, width): (Vec<usize>, usize, usize),
        runs: &[CaptureRun],
        environment: Environment,
    ) -> CaptureResult {
        let mut iterations: Vec<Iteration> = Vec::new();
        for (process, run) in runs.iter().enumerate() {
            for iteration in &run.iterations {
                let number = iterations.len() + 1;
                iterations.push(Iteration { iteration: number, process: process + 1, ..iteration.clone() });
            }
        }
        let first = runs.first().cloned().unwrap_or_default();
        let predicted = size.captured_bytes(layers.len(), width);
        let mut problems: Vec<String> = runs.iter().flat_map(|run| run.problems.clone()).collect();
        for run in runs {
            if run.captured_bytes != predicted {
                problems.push(format!("captured {} bytes, expected {predicted}", run.captured_bytes));
            }
            if run.tokens != first.tokens {
                problems.push("two processes generated different tokens".into());
            }
            if run.equals_forward_pass == Some(false) {
                problems.push("captures differ from a forward pass over the same text".into());
            }
        }
        problems.dedup();
        CaptureResult {
            schema: MODE_SCHEMA.into(),
            mode,
            model: model.into(),
            batch_size: size.batch,
            prefill_tokens: size.prefill,
            decode_tokens: size.decode,
            mixed_lengths: size.mixed,
            total_layers: depth,
            num_captured_layers: layers.len(),
            capture_layers: layers,
            summary: Summary::of(&iterations),
            true_concurrency: iterations.iter().map(|i| i.max_concurrency).max().unwrap_or(0),
            iterations,
            processes: runs.len(),
            requests: first.requests,
            rows_checked: runs.iter().map(|run| run.rows_checked).sum(),
            captured_bytes: CapturedBytes {
                observed: first.captured_bytes,
                predicted,
                bytes_per_element: size_of::<f32>(),
            },
            output_digest: digest(&first.tokens),
            equals_forward_pass: first.equals_forward_pass,
            peak_memory_bytes: runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0),
            resident_bytes: first.resident_bytes,
            prefix_cache: "off".into(),
            time_split: runs.iter().find_map(|run| run.split),
            problems,
            environment,
        }
    }
}

impl CaptureResult {
    /// Describes the workload: `32 requests at once, 512 prompt tokens and 128 new tokens each`.
    pub fn workload(&self) -> String {
        let (prefill, decode) = (self.prefill_tokens, self.decode_tokens);
        match self.mixed_lengths {
            false => {
                format!("{} requests at once, {prefill} prompt tokens and {decode} new tokens each", self.batch_size)
            }
            true => format!(
                "{} requests at once, of {} to {prefill} prompt tokens and {} to {decode} new tokens",
                self.batch_size,
                SHORTEST.min(prefill),
                SHORTEST.min(decode)
            ),
        }
    }
}

/// Returns the FNV-1a hash of token lists.
pub fn digest(tokens: &[Vec<u32>]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for row in tokens {
        // The length separates rows.
        for word in std::iter::once(row.len() as u32).chain(row.iter().copied()) {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    format!("{hash:016x}")
}

/// The file of a whole suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureSuite {
    /// The format, [`SUITE_SCHEMA`].
    pub schema: String,
    /// Start in UTC.
    pub timestamp: String,
    /// The command line.
    pub command: Vec<String>,
    /// The modes in the order in which their processes ran.
    pub order: Vec<Mode>,
    /// Rounds of the interleaved order.
    pub rounds: usize,
    /// Timed iterations per process.
    pub iterations: usize,
    /// The results of the modes.
    pub modes: Vec<CaptureResult>,
    /// The baseline against itself, and every mode against the baseline.
    pub overheads: Vec<Overhead>,
    /// Generation time against the number of captured layers.
    pub fit: Option<LayerFit>,
    /// The limits that the engine promises.
    pub bars: Vec<Bar>,
    /// Explanations of the figures.
    pub findings: Vec<Finding>,
    /// The same prompts in other libraries.
    pub peers: Vec<PeerResult>,
    /// Reasons not to trust the result.
    pub invalid: Vec<String>,
}

impl CaptureSuite {
    /// Returns the result of a mode.
    pub fn mode(&self, mode: Mode) -> Option<&CaptureResult> {
        self.modes.iter().find(|result| result.mode == mode)
    }

    /// Exit code: 1 if an output or capture is wrong; with `gate` also 1 for a missed bar and 4 for
    /// an undecided one.
    pub fn exit_code(&self, gate: bool) -> i32 {
        use super::overhead::BarState;
        let bars = |state: BarState| gate && self.bars.iter().any(|bar| bar.state == state);
        match () {
            () if !self.invalid.is_empty() || bars(BarState::Missed) => 1,
            () if bars(BarState::Undecided) => 4,
            () => 0,
        }
    }
}
