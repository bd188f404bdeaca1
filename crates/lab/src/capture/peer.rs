//! The same prompts and token counts in other libraries: `generate` of transformers alone, with
//! forward hooks and with `output_hidden_states`; parallel sequences in llama.cpp.

use super::request::CaptureRequest;
use super::result::{CaptureRun, Iteration, Summary};
use crate::executor::{has_module, run_process};
use pellucid_models::python;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// A library that runs the same prompts.
#[derive(Clone, Copy)]
pub struct Peer {
    /// Name of the job in the worker.
    pub job: &'static str,
    /// Title.
    pub title: &'static str,
    /// Python modules that it needs.
    modules: &'static [&'static str],
    /// Python program after the common start.
    script: &'static str,
    /// Whether it captures activations.
    pub captures: bool,
    /// Whether its tokens must equal ours. llama.cpp rounds activations to 8 bits.
    exact: bool,
}

const TORCH: &[&str] = &["torch", "transformers"];
const TRANSFORMERS: &str =
    concat!(include_str!("../../peers/prelude_torch.py"), include_str!("../../peers/capture_generate.py"));

/// The peers.
pub const PEERS: [Peer; 4] = [
    Peer {
        job: "generate",
        title: "transformers generate",
        modules: TORCH,
        script: TRANSFORMERS,
        captures: false,
        exact: true,
    },
    Peer {
        job: "hooks",
        title: "transformers generate, forward hooks",
        modules: TORCH,
        script: TRANSFORMERS,
        captures: true,
        exact: true,
    },
    Peer {
        job: "hidden-states",
        title: "transformers generate, output_hidden_states",
        modules: TORCH,
        script: TRANSFORMERS,
        captures: true,
        exact: true,
    },
    Peer {
        job: "sequences",
        title: "llama.cpp, parallel sequences",
        modules: &["llama_cpp"],
        script: include_str!("../../peers/capture_llama_cpp.py"),
        captures: false,
        exact: false,
    },
];

/// Largest difference of a captured activation that counts as equal: absolute, and per unit of the
/// value.
const TOLERANCE: (f32, f32) = (2e-3, 1e-3);

/// A peer's measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerResult {
    /// Title.
    pub name: String,
    /// Library and version.
    pub engine: String,
    /// Timed iterations.
    pub iterations: Vec<Iteration>,
    /// Their statistics.
    pub summary: Summary,
    /// Bytes of the captures.
    pub captured_bytes: u64,
    /// Peak RSS.
    pub peak_memory_bytes: u64,
    /// Median generation time relative to our mode with the same captures.
    pub times_ours: f64,
    /// The same for CPU time.
    pub cpu_times_ours: f64,
    /// Requests whose tokens are all equal to ours.
    pub equal_requests: usize,
    /// Requests.
    pub requests: usize,
    /// Tokens before the first difference, of all requests, as a fraction.
    pub equal_tokens: f64,
    /// Largest difference of the compared activations from ours; absent without captures.
    pub largest_difference: Option<f32>,
    /// Whether the output agrees with ours: the activations, and the first token of every request.
    pub agrees: bool,
}

impl Peer {
    /// Returns the modules that an interpreter cannot import.
    pub fn missing(&self, python: &Path) -> Vec<&'static str> {
        self.modules.iter().copied().filter(|module| !has_module(python, module)).collect()
    }
}

/// Runs one peer with a request to Pellucid, whose answer is `ours`.
///
/// # Errors With the reason, if the peer fails.
pub fn run(
    python: &Path,
    peer: &Peer,
    request: &CaptureRequest,
    ours: &CaptureRun,
    our_summary: &Summary,
    limit: Duration,
) -> Result<PeerResult, String> {
    let mut asked = serde_json::to_value(CaptureRequest { job: peer.job.into(), ..request.clone() })
        .map_err(|error| error.to_string())?;
    // The common start of all peers reads a single prompt.
    asked["tokens"] = serde_json::json!(request.prompts[0]);
    let script = [include_str!("../../peers/prelude.py"), peer.script].concat();
    let mut command = python::command(python, &script);
    // Loading is not measured, so a GGUF file is converted once.
    command.env("PELLUCID_LAB_CONVERT", "1");
    if let Some(threads) = request.threads {
        for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(name, threads.to_string());
        }
    }
    let (run, _): (CaptureRun, f64) = run_process(&mut command, &asked, limit)
        .map_err(|(kind, message)| format!("{} {}: {message}", peer.title, kind.name()))?;
    Ok(compare(peer, run, ours, our_summary))
}

fn compare(peer: &Peer, run: CaptureRun, ours: &CaptureRun, our_summary: &Summary) -> PeerResult {
    let pairs = || run.tokens.iter().zip(&ours.tokens);
    let common = |(a, b): (&Vec<u32>, &Vec<u32>)| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let total: usize = ours.tokens.iter().map(Vec::len).sum();
    let same_shape = run.tokens.len() == ours.tokens.len();
    let compared = run.sample.len() == ours.sample.len() && !ours.sample.is_empty();
    let differences = || run.sample.iter().zip(&ours.sample);
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE.0 + TOLERANCE.1 * b.abs();
    let summary = Summary::of(&run.iterations);
    PeerResult {
        name: peer.title.into(),
        times_ours: summary.median_generation_time / our_summary.median_generation_time,
        cpu_times_ours: summary.median_cpu_time / our_summary.median_cpu_time,
        equal_requests: pairs().filter(|(a, b)| a == b).count(),
        requests: ours.tokens.len(),
        equal_tokens: pairs().map(common).sum::<usize>() as f64 / total.max(1) as f64,
        largest_difference: compared.then(|| differences().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)),
        agrees: same_shape
            && pairs().all(|(a, b)| (a.first() == b.first() || !peer.exact) && a.len() == b.len())
            && run.captured_bytes == ours.captured_bytes
            && (ours.sample.is_empty() || compared && differences().all(close)),
        engine: run.engine,
        iterations: run.iterations,
        summary,
        captured_bytes: run.captured_bytes,
        peak_memory_bytes: run.peak_bytes,
    }
}
