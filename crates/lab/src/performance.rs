//! `lab performance`: the time of every op in decoding and in prompts, per weight dtype, against
//! the machine's roofline; and the cost of captures by layers and prompt length.
//!
//! Each dtype is measured in its own process. Times are the minimum of a few rounds, because
//! disturbances only ever add time.

use crate::executor::run_process;
use crate::protocol::{Job, Request, prompt};
use crate::roofline::{OpRate, STEPS, fastest_ops, matmul_rate, read_rate, run_phase, sustained_matmul_rate};
use crate::stats::{Fit, least_squares, median};
use crate::{Result, worker};
use pellucid_engine::{Action, Model, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::Pool;
use pellucid_models::{Error, python};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Weight dtypes, in the order of the page.
pub const STORAGES: [&str; 4] = ["f32", "bf16", "q8", "auto"];
/// Tokens of the prompts.
const PROMPTS: [usize; 2] = [9, 512];
/// Prompt lengths at which captures are measured.
const LENGTHS: [usize; 4] = [64, 128, 256, 512];
/// Number of rounds; the fastest counts.
const ROUNDS: usize = 5;
/// Time limit of one process.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Everything on the page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// Model name or path.
    pub model: String,
    /// One profile per weight dtype.
    pub storages: Vec<StorageProfile>,
    /// Fastest matmul of each peer: name and FLOP/s.
    pub peers: Vec<(String, f64)>,
}

/// Measurements of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageProfile {
    /// Weight dtype: `f32`, `bf16`, `q8`, or `auto` for as stored.
    pub dtype: String,
    /// Total bytes of the weights.
    pub weight_bytes: u64,
    /// Threads.
    pub threads: usize,
    /// Memory read bandwidth, in bytes per second.
    pub bytes_per_s: f64,
    /// FLOP/s of our fastest matmul.
    pub flops_per_s: f64,
    /// A decode step, then the prompts.
    pub phases: Vec<Phase>,
    /// Cost of captures.
    pub captures: Option<Captures>,
}

/// One forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Tokens in the pass; 1 for a decode step.
    pub tokens: usize,
    /// Seconds of the pass without profiling.
    pub seconds: f64,
    /// Ops by decreasing time, with the seconds of one pass.
    pub ops: Vec<OpRate>,
    /// For prompts: FLOP/s relative to matmuls that ran just before; median of the rounds.
    #[serde(rename = "of_products")]
    pub fraction_of_matmul: Option<f64>,
}

/// Cost of capturing whole layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Captures {
    /// (tokens, captured layers, seconds).
    pub cells: Vec<(usize, usize, f64)>,
    /// Additional seconds per captured layer and token.
    pub per_layer_token: f64,
    /// R² of the fit of extra seconds against layers × tokens.
    pub extra_r2: f64,
    /// Seconds per token with every layer captured.
    pub per_token: f64,
    /// R² of that fit against the prompt length.
    pub length_r2: f64,
}

/// The machine's roofline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Memory bandwidth, bytes per second.
    pub bytes_per_s: f64,
    /// Peak matmul rate, FLOP/s.
    pub flops_per_s: f64,
}

impl Limits {
    /// Returns the minimum seconds of an op; 0 if it is not a matmul.
    pub fn least_seconds(&self, op: &OpRate) -> f64 {
        (op.bytes / self.bytes_per_s).max(op.flops / self.flops_per_s)
    }

    /// Whether the op is memory-bound.
    pub fn is_memory(&self, op: &OpRate) -> bool {
        op.bytes / self.bytes_per_s > op.flops / self.flops_per_s
    }
}

impl Performance {
    /// Returns the best rates of all processes and peers, so that one disturbed process does not
    /// lower the limit.
    pub fn limits(&self) -> Limits {
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
        Limits {
            bytes_per_s: most(&mut self.storages.iter().map(|s| s.bytes_per_s)),
            flops_per_s: most(&mut self.storages.iter().map(|s| s.flops_per_s).chain(self.peers.iter().map(|p| p.1))),
        }
    }
}

/// Measures a model with every weight dtype, each in a fresh process, and torch's matmul if
/// `python` is given.
pub fn measure_storages(
    model: &Path,
    assume: Option<&str>,
    pellucid: &Path,
    python: Option<&Path>,
    on_progress: &mut dyn FnMut(&str),
) -> std::result::Result<Performance, String> {
    let mut storages = Vec::new();
    for dtype in STORAGES {
        on_progress(&format!("weights as {}", if dtype == "auto" { "stored" } else { dtype }));
        let mut command = Command::new(pellucid);
        command.args(["lab", "__performance"]);
        let found = run_process(&mut command, &request(model, dtype, assume), TIMEOUT);
        storages
            .push(found.map_err(|(kind, message)| format!("the process for {dtype} {}: {message}", kind.name()))?.0);
    }
    let mut peers = Vec::new();
    if let Some(python) = python {
        on_progress("matmuls of torch");
        let mut command = python::command(python, include_str!("../peers/product_rate.py"));
        match run_process::<(String, f64)>(&mut command, &(), TIMEOUT) {
            Ok((peer, _)) => peers.push(peer),
            Err((kind, message)) => on_progress(&format!("left out: torch {}: {message}", kind.name())),
        }
    }
    Ok(Performance { model: model.display().to_string(), storages, peers })
}

/// Builds the request for one process.
fn request(model: &Path, dtype: &str, assume: Option<&str>) -> Request {
    Request {
        model: model.into(),
        dtype: dtype.into(),
        threads: None,
        assume: assume.map(str::to_string),
        job: Job::Prefill,
        paired_job: None,
        tokens: prompt(PROMPTS[1]),
        warmups: 1,
        repeats: ROUNDS,
    }
}

/// Measures a model in this process.
pub fn measure(request: &Request) -> Result<StorageProfile> {
    let loaded = worker::open(&request.model, &worker::options(request)?)?;
    let pool = request.threads.map_or_else(Pool::global, |n| Arc::new(Pool::new(n)));
    let model = &loaded.model;
    // The prompt and the decode steps must fit into the model's context.
    let max_prompt = model.program().architecture().context.unwrap_or(usize::MAX).saturating_sub(STEPS).max(1);
    let cut = |count: usize| &request.tokens[..request.tokens.len().min(max_prompt).min(count)];
    let mut phases = vec![measure_phase(model, &pool, cut(PROMPTS[0]), "step", request.repeats)?];
    for count in PROMPTS {
        phases.push(measure_phase(model, &pool, cut(count), "prompt", request.repeats)?);
    }
    let captures = match request.dtype.as_str() {
        "f32" => measure_captures(model, &LENGTHS.map(cut), request.repeats)?,
        _ => None,
    };
    Ok(StorageProfile {
        dtype: request.dtype.clone(),
        weight_bytes: model.weights().bytes() as u64,
        threads: pool.threads(),
        bytes_per_s: read_rate(&pool),
        flops_per_s: matmul_rate(&pool),
        phases,
        captures,
    })
}

/// Measures one phase: whole passes without profiling, then the ops with it.
fn measure_phase(model: &Model, pool: &Pool, tokens: &[u32], name: &str, rounds: usize) -> Result<Phase> {
    // `run_phase` times all decode steps together.
    let passes = if name == "step" { STEPS as f64 } else { 1.0 };
    run_phase(model, tokens, name)?;
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        rates.extend((name == "prompt").then(|| sustained_matmul_rate(pool)));
        times.push(run_phase(model, tokens, name)? / passes);
    }
    let mut ops = fastest_ops(model, tokens, name, rounds)?;
    let total: f64 = ops.iter().map(|op| op.seconds).sum();
    for op in &mut ops {
        op.share = op.seconds / total.max(f64::MIN_POSITIVE);
        [op.seconds, op.flops, op.bytes] = [op.seconds, op.flops, op.bytes].map(|amount| amount / passes);
    }
    ops.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let flops: f64 = ops.iter().map(|op| op.flops).sum();
    let parts: Vec<f64> = times.iter().zip(&rates).map(|(seconds, rate)| flops / seconds / rate).collect();
    Ok(Phase {
        tokens: if name == "step" { 1 } else { tokens.len() },
        seconds: times.into_iter().fold(f64::INFINITY, f64::min),
        ops,
        fraction_of_matmul: (!parts.is_empty()).then(|| median(&parts)),
    })
}

/// Times prefills of several lengths with several numbers of captured layers, alternating. `None`
/// if the model is too small to vary both.
fn measure_captures(model: &Model, prompts: &[&[u32]], rounds: usize) -> Result<Option<Captures>> {
    let depth = model.program().architecture().layers.len();
    let mut layers = vec![0, depth / 3, 2 * depth / 3, depth];
    layers.dedup();
    let mut prompts = prompts.to_vec();
    prompts.dedup_by_key(|tokens| tokens.len());
    let mut cells: Vec<(usize, usize, f64)> = Vec::new();
    for round in 0..=rounds {
        let mut index = 0;
        for tokens in &prompts {
            for &count in &layers {
                let seconds = time_captures(model, tokens, count)?;
                match cells.get_mut(index) {
                    // The first round is the warm-up.
                    Some(cell) if round > 1 => cell.2 = cell.2.min(seconds),
                    Some(cell) => cell.2 = seconds,
                    None => cells.push((tokens.len(), count, seconds)),
                }
                index += 1;
            }
        }
    }
    Ok(fit_costs(cells))
}

fn time_captures(model: &Model, tokens: &[u32], layers: usize) -> Result<f64> {
    let last = Tap::new("logits", Action::Capture(None)).positions(Positions::Last);
    let taps = (0..layers).map(|layer| Tap::new(format!("layers.{layer}.resid_post"), Action::Capture(None)));
    let plan = taps.fold(Plan::default().with(last), Plan::with);
    let rows = [tokens.to_vec()];
    let started = Instant::now();
    let run = model.run(&rows, &plan, &RunOptions::default()).map_err(Error::from)?;
    let seconds = started.elapsed().as_secs_f64();
    drop(run);
    Ok(seconds)
}

/// Fits extra seconds against layers × tokens, and seconds with all layers captured against tokens.
fn fit_costs(cells: Vec<(usize, usize, f64)>) -> Option<Captures> {
    let plain = |tokens: usize| cells.iter().find(|cell| (cell.0, cell.1) == (tokens, 0)).map(|cell| cell.2);
    let extra: Option<Vec<(f64, f64)>> = cells
        .iter()
        .map(|&(tokens, layers, seconds)| Some(((layers * tokens) as f64, seconds - plain(tokens)?)))
        .collect();
    let deepest = cells.iter().map(|cell| cell.1).max()?;
    let whole = cells.iter().filter(|cell| cell.1 == deepest).map(|&(tokens, _, seconds)| (tokens as f64, seconds));
    let (extra, length) = (fit_line(&extra?)?, fit_line(&whole.collect::<Vec<_>>())?);
    Some(Captures {
        per_layer_token: extra.coefficients[1],
        extra_r2: extra.r2,
        per_token: length.coefficients[1],
        length_r2: length.r2,
        cells,
    })
}

fn fit_line(points: &[(f64, f64)]) -> Option<Fit> {
    let rows: Vec<Vec<f64>> = points.iter().map(|(x, _)| vec![1.0, *x]).collect();
    least_squares(&rows, &points.iter().map(|(_, y)| *y).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_model_is_profiled() {
        let builtin = Path::new(pellucid_models::builtin::NAME);
        let request = Request { repeats: 1, threads: Some(1), ..request(builtin, "f32", None) };
        let found = measure(&request).expect("measured");
        let tokens: Vec<usize> = found.phases.iter().map(|phase| phase.tokens).collect();
        assert_eq!(tokens, [1, 9, 256 - STEPS], "a step, a short prompt, and one that fills the context");
        for phase in &found.phases {
            assert!((phase.ops.iter().map(|op| op.share).sum::<f64>() - 1.0).abs() < 1e-9, "{phase:?}");
            assert!(phase.seconds > 0.0 && phase.ops.iter().any(|op| op.name == "(attention)"), "{phase:?}");
            // Every pass reads all weights once, except the embedding table, whatever its length.
            let read: f64 = phase.ops.iter().map(|op| op.bytes).sum();
            assert!((read / found.phases[0].ops.iter().map(|op| op.bytes).sum::<f64>() - 1.0).abs() < 1e-9);
            assert!(read <= found.weight_bytes as f64 && read > 0.5 * found.weight_bytes as f64);
            assert_eq!(phase.fraction_of_matmul.is_some(), phase.tokens > 1, "{phase:?}");
        }
        let captures = found.captures.as_ref().expect("several lengths and layers");
        assert_eq!(captures.cells.len(), 3 * 4, "64, 128 and 240 tokens");
        let survey =
            Performance { model: "builtin".into(), storages: vec![found], peers: vec![("torch".into(), 1e15)] };
        assert_eq!(survey.limits().flops_per_s, 1e15, "the fastest rate sets the limit");
    }

    #[test]
    fn linear_costs_are_fitted() {
        let cell = |tokens: usize, layers: usize| {
            (tokens, layers, 1.0 + 0.01 * tokens as f64 + 1e-4 * (tokens * layers) as f64)
        };
        let cells =
            [64, 128, 256].into_iter().flat_map(|tokens| [0, 4, 8].map(|layers| cell(tokens, layers))).collect();
        let found = fit_costs(cells).expect("a fit");
        assert!((found.per_layer_token - 1e-4).abs() < 1e-9 && (found.per_token - 0.0108).abs() < 1e-9, "{found:?}");
        assert!(found.extra_r2 > 0.999_999 && found.length_r2 > 0.999_999);
        assert_eq!(fit_costs(vec![(64, 0, 1.0)]), None, "one point has no fit");
    }
}
