//! Runs the modes in fresh processes, in interleaved order.

use super::findings;
use super::mode::Mode;
use super::overhead::{self, ModeProcess};
use super::request::{CaptureRequest, WorkloadSize};
use super::result::{CaptureResult, CaptureRun, CaptureSuite, SUITE_SCHEMA};
use crate::environment::Environment;
use crate::executor::run_process;
use crate::report::date;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Requests of mixed lengths that a peer pads to one batch, after sorting them by length.
const PADDED_BATCH: usize = 8;

/// Settings of a suite.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// Directory, GGUF file, or the name of the built-in model.
    pub model: PathBuf,
    /// The model's name in results.
    pub model_name: String,
    /// Family to assume for a model of an unknown type.
    pub assume: Option<String>,
    /// In-memory dtype of the weights.
    pub dtype: String,
    /// Number of threads; the engine's default if absent.
    pub threads: Option<usize>,
    /// The workload.
    pub size: WorkloadSize,
    /// Layers of the model.
    pub depth: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Layers of the mode `custom`.
    pub custom_layers: Vec<usize>,
    /// Timed iterations per process.
    pub iterations: usize,
    /// Untimed iterations per process.
    pub warmups: usize,
    /// Rounds; each runs every mode once and the baseline twice.
    pub rounds: usize,
    /// Also time writing the captures to a file.
    pub profile_fetch: bool,
    /// The command line, for the result.
    pub command: Vec<String>,
}

impl CaptureSettings {
    /// Returns the layers that a mode captures.
    pub fn layers(&self, mode: Mode) -> Vec<usize> {
        mode.layers(self.depth, &self.custom_layers)
    }

    /// Returns the request to a worker of a mode.
    pub fn request(&self, mode: Mode, profile: bool) -> CaptureRequest {
        CaptureRequest {
            model: self.model.clone(),
            dtype: self.dtype.clone(),
            threads: self.threads,
            assume: self.assume.clone(),
            job: mode.name().into(),
            layers: self.layers(mode),
            prompts: self.size.prompts(self.vocab),
            new_tokens: self.size.requests().into_iter().map(|(_, new)| new).collect(),
            // Prompts of one length need no padding.
            padded_batch: self.size.mixed.then_some(PADDED_BATCH),
            warmups: self.warmups,
            iterations: self.iterations,
            profile,
            profile_fetch: self.profile_fetch && mode.captures(),
        }
    }

    /// Joins the processes of a mode into its result.
    pub fn result(&self, mode: Mode, runs: &[CaptureRun], environment: Environment) -> CaptureResult {
        let shape = (self.layers(mode), self.depth, self.width);
        CaptureResult::new(mode, &self.model_name, self.size, shape, runs, environment)
    }
}

/// Runs workers: as processes, or simulated in tests.
pub trait CaptureExecutor {
    /// Runs one worker; the error is the reason for its failure.
    fn run(&mut self, request: &CaptureRequest) -> Result<CaptureRun, String>;
}

/// Runs each worker as a fresh process of the Pellucid executable.
pub struct CaptureProcesses {
    /// The executable, started as `lab __capture`.
    pub pellucid: PathBuf,
    /// Time limit of one process.
    pub limit: Duration,
}

impl CaptureExecutor for CaptureProcesses {
    fn run(&mut self, request: &CaptureRequest) -> Result<CaptureRun, String> {
        let mut command = Command::new(&self.pellucid);
        command.args(["lab", "__capture"]).env("RUST_BACKTRACE", "0");
        run_process(&mut command, request, self.limit)
            .map(|(run, _)| run)
            .map_err(|(kind, message)| format!("the worker {}: {message}", kind.name()))
    }
}

/// Returns the order of the processes: in each round every mode once between two baselines, and
/// every other round reversed, so that a slow drift of the machine affects all modes alike.
pub fn interleaved(modes: &[Mode], rounds: usize) -> Vec<(usize, Mode)> {
    let others = || modes.iter().copied().filter(|mode| *mode != Mode::Baseline);
    let mut order = Vec::new();
    for round in 0..rounds {
        let mut turn: Vec<Mode> = others().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        order.extend(std::iter::once(Mode::Baseline).chain(turn).chain([Mode::Baseline]).map(|mode| (round, mode)));
    }
    order
}

/// Returns a time as part of a folder's name: `20260130_080000`.
pub fn folder_time(unix_seconds: u64) -> String {
    let time = date(unix_seconds);
    time.trim_end_matches(" UTC").replace(['-', ':'], "").replace(' ', "_")
}

/// Runs a suite. `progress` is called before each process with its number, their total and its
/// mode. A failing process ends the suite; the error is its reason.
pub fn run(
    settings: &CaptureSettings,
    modes: &[Mode],
    environment: &Environment,
    executor: &mut dyn CaptureExecutor,
    progress: &mut dyn FnMut(usize, usize, Mode),
) -> Result<CaptureSuite, String> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let order = interleaved(modes, settings.rounds);
    let mut processes: Vec<ModeProcess> = Vec::with_capacity(order.len());
    for (index, &(round, mode)) in order.iter().enumerate() {
        progress(index, order.len(), mode);
        // One profile per mode is enough: it takes three more iterations.
        let profile = !processes.iter().any(|process| process.mode == mode);
        let run = executor.run(&settings.request(mode, profile)).map_err(|why| format!("{}: {why}", mode.name()))?;
        processes.push(ModeProcess { round, mode, run });
    }
    let layers = |mode: Mode| settings.layers(mode).len();
    let mut results = Vec::new();
    for (mode, _) in Mode::ALL {
        let runs: Vec<CaptureRun> =
            processes.iter().filter(|process| process.mode == mode).map(|process| process.run.clone()).collect();
        if !runs.is_empty() {
            results.push(settings.result(mode, &runs, environment.clone()));
        }
    }
    let overheads = overhead::overheads(&processes, layers);
    let mut suite = CaptureSuite {
        schema: SUITE_SCHEMA.into(),
        timestamp: date(began),
        command: settings.command.clone(),
        order: order.into_iter().map(|(_, mode)| mode).collect(),
        rounds: settings.rounds,
        iterations: settings.iterations,
        invalid: problems(&results),
        bars: overhead::bars(&overheads, &processes),
        fit: overhead::fit(&processes, layers),
        modes: results,
        overheads,
        findings: Vec::new(),
        peers: Vec::new(),
    };
    suite.findings = findings::of(&suite);
    Ok(suite)
}

/// Problems of the modes, and modes whose tokens differ from the baseline's.
fn problems(results: &[CaptureResult]) -> Vec<String> {
    let named = |result: &CaptureResult, problem: &str| format!("{}: {problem}", result.mode.name());
    let mut found: Vec<String> =
        results.iter().flat_map(|result| result.problems.iter().map(move |problem| named(result, problem))).collect();
    if let Some(base) = results.first() {
        let other = results.iter().filter(|result| result.output_digest != base.output_digest);
        found.extend(other.map(|result| named(result, "generated other tokens than the baseline")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_mirror_each_other_between_baselines() {
        let order = interleaved(&[Mode::Baseline, Mode::ZeroLayer, Mode::AllLayers], 2);
        let modes: Vec<Mode> = order.iter().map(|(_, mode)| *mode).collect();
        let (b, z, a) = (Mode::Baseline, Mode::ZeroLayer, Mode::AllLayers);
        assert_eq!(modes, [b, z, a, b, b, a, z, b]);
        assert_eq!(order[5], (1, a));
    }
}
