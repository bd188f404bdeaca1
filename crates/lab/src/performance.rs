//! Where the time goes: a model's ops in decoding and in prompts, by how its weights are kept, under the limits of this machine; and what
//! captures cost, by layers and length.
//!
//! Each way to keep weights is measured in a process of its own. Times are the fastest of a few rounds: what disturbs a machine makes
//! things slower, never faster.

use crate::executor::run_process;
use crate::protocol::{Job, Request, prompt};
use crate::roofline::{OpRate, STEPS, fastest, go, lasting_product_rate, product_rate, read_rate};
use crate::stats::{Fit, least_squares, median};
use crate::{Result, worker};
use pellucid_engine::{Action, Model, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::Pool;
use pellucid_models::Error;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How weights are kept, in the order of the page.
pub const STORAGES: [&str; 4] = ["f32", "bf16", "q8", "auto"];
/// Tokens of the prompts.
const PROMPTS: [usize; 2] = [9, 512];
/// Lengths at which captures are measured.
const LENGTHS: [usize; 4] = [64, 128, 256, 512];
/// Rounds, of which the fastest counts; more for what is short.
const ROUNDS: usize = 5;
/// How long one process may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Everything that the page tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Performance {
    /// The model, as it was named.
    pub model: String,
    /// By how weights are kept.
    pub storages: Vec<Measured>,
    /// Peers' fastest products: who, and operations a second.
    pub peers: Vec<(String, f64)>,
}

/// What one process found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How weights are kept: `f32`, `bf16` or `auto`, which is as stored.
    pub dtype: String,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Threads.
    pub threads: usize,
    /// Bytes a second that this machine reads from memory.
    pub bytes_per_s: f64,
    /// Operations a second of our fastest product.
    pub flops_per_s: f64,
    /// A step of decoding, then the prompts.
    pub phases: Vec<Phase>,
    /// What captures cost.
    pub captures: Option<Captures>,
}

/// One pass through the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Tokens of the pass; one is a step of decoding.
    pub tokens: usize,
    /// Seconds of the pass, without a profile.
    pub seconds: f64,
    /// Its ops, the longest first, with the seconds of one pass.
    pub ops: Vec<OpRate>,
    /// Of a prompt: its operations a second as a part of those of products that ran just before, the median of all rounds.
    pub of_products: Option<f64>,
}

/// What captures of whole layers cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Captures {
    /// Tokens, captured layers and seconds.
    pub cells: Vec<(usize, usize, f64)>,
    /// Seconds that a captured layer adds for each token.
    pub per_layer_token: f64,
    /// The share of the extra seconds' variance that follows from layers times tokens.
    pub extra_r2: f64,
    /// Seconds that each token adds where every layer is captured.
    pub per_token: f64,
    /// The share of these runs' variance that follows from their length.
    pub length_r2: f64,
}

/// The limits that ops are held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Operations a second.
    pub flops_per_s: f64,
}

impl Limits {
    /// The seconds that an op needs at least; 0 for what is no product.
    pub fn least_seconds(&self, op: &OpRate) -> f64 {
        (op.bytes / self.bytes_per_s).max(op.flops / self.flops_per_s)
    }

    /// Whether memory is what limits an op.
    pub fn is_memory(&self, op: &OpRate) -> bool {
        op.bytes / self.bytes_per_s > op.flops / self.flops_per_s
    }
}

impl Performance {
    /// The best that was measured here by anybody: a process that was disturbed does not lower the bar.
    pub fn limits(&self) -> Limits {
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
        Limits {
            bytes_per_s: most(&mut self.storages.iter().map(|s| s.bytes_per_s)),
            flops_per_s: most(&mut self.storages.iter().map(|s| s.flops_per_s).chain(self.peers.iter().map(|p| p.1))),
        }
    }
}

/// Measures a model in all storages, each in a fresh process of an executable of ours, and products of torch where a Python has it.
pub fn survey(
    model: &Path,
    assume: Option<&str>,
    pellucid: &Path,
    python: Option<&Path>,
    heard: &mut dyn FnMut(&str),
) -> std::result::Result<Performance, String> {
    let mut storages = Vec::new();
    for dtype in STORAGES {
        heard(&format!("weights as {}", if dtype == "auto" { "stored" } else { dtype }));
        let mut command = Command::new(pellucid);
        command.args(["lab", "__performance"]);
        let found = run_process(&mut command, &request(model, dtype, assume), LIMIT);
        storages.push(found.map_err(|(how, said)| format!("the process for {dtype} {}: {said}", how.name()))?.0);
    }
    let mut peers = Vec::new();
    if let Some(python) = python {
        heard("products of torch");
        let mut command = Command::new(python);
        command.args(["-c", include_str!("../peers/product_rate.py")]);
        match run_process::<(String, f64)>(&mut command, &(), LIMIT) {
            Ok((peer, _)) => peers.push(peer),
            Err((how, said)) => heard(&format!("left out: torch {}: {said}", how.name())),
        }
    }
    Ok(Performance { model: model.display().to_string(), storages, peers })
}

/// What a process is asked.
fn request(model: &Path, dtype: &str, assume: Option<&str>) -> Request {
    Request {
        model: model.into(),
        dtype: dtype.into(),
        threads: None,
        assume: assume.map(str::to_string),
        job: Job::Prefill,
        beside: None,
        tokens: prompt(PROMPTS[1]),
        warmups: 1,
        repeats: ROUNDS,
    }
}

/// Measures a model in this process.
pub fn measure(request: &Request) -> Result<Measured> {
    let loaded = worker::open(&request.model, &worker::options(request)?)?;
    let pool = request.threads.map_or_else(Pool::global, |n| Arc::new(Pool::new(n)));
    let model = &loaded.model;
    // A small model may have no room for a long prompt and the steps after it.
    let room = model.program().architecture().context.unwrap_or(usize::MAX).saturating_sub(STEPS).max(1);
    let cut = |count: usize| &request.tokens[..request.tokens.len().min(room).min(count)];
    let mut phases = vec![phase(model, &pool, cut(PROMPTS[0]), "step", request.repeats)?];
    for count in PROMPTS {
        phases.push(phase(model, &pool, cut(count), "prompt", request.repeats)?);
    }
    let captures = match request.dtype.as_str() {
        "f32" => captures(model, &LENGTHS.map(cut), request.repeats)?,
        _ => None,
    };
    Ok(Measured {
        dtype: request.dtype.clone(),
        weight_bytes: model.weights().bytes() as u64,
        threads: pool.threads(),
        bytes_per_s: read_rate(&pool),
        flops_per_s: product_rate(&pool),
        phases,
        captures,
    })
}

/// One phase: whole passes without a profile, then their ops.
fn phase(model: &Model, pool: &Pool, tokens: &[u32], name: &str, rounds: usize) -> Result<Phase> {
    // Steps come in series, of which one has the time.
    let passes = if name == "step" { STEPS as f64 } else { 1.0 };
    go(model, tokens, name)?;
    let (mut times, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        rates.extend((name == "prompt").then(|| lasting_product_rate(pool)));
        times.push(go(model, tokens, name)? / passes);
    }
    let mut ops = fastest(model, tokens, name, rounds)?;
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
        of_products: (!parts.is_empty()).then(|| median(&parts)),
    })
}

/// Prefills of several lengths with several numbers of layers captured, in turns; none where the model is too small for several of each.
fn captures(model: &Model, prompts: &[&[u32]], rounds: usize) -> Result<Option<Captures>> {
    let depth = model.program().architecture().layers.len();
    let mut layers = vec![0, depth / 3, 2 * depth / 3, depth];
    layers.dedup();
    let mut prompts = prompts.to_vec();
    prompts.dedup_by_key(|tokens| tokens.len());
    let mut cells: Vec<(usize, usize, f64)> = Vec::new();
    for round in 0..=rounds {
        let mut place = 0;
        for tokens in &prompts {
            for &count in &layers {
                let seconds = captured(model, tokens, count)?;
                match cells.get_mut(place) {
                    // The first round warms up.
                    Some(cell) if round > 1 => cell.2 = cell.2.min(seconds),
                    Some(cell) => cell.2 = seconds,
                    None => cells.push((tokens.len(), count, seconds)),
                }
                place += 1;
            }
        }
    }
    Ok(fitted(cells))
}

fn captured(model: &Model, tokens: &[u32], layers: usize) -> Result<f64> {
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

/// The two lines through what captures cost: extra seconds by layers times tokens, and seconds with all layers by tokens.
fn fitted(cells: Vec<(usize, usize, f64)>) -> Option<Captures> {
    let plain = |tokens: usize| cells.iter().find(|cell| (cell.0, cell.1) == (tokens, 0)).map(|cell| cell.2);
    let extra: Option<Vec<(f64, f64)>> = cells
        .iter()
        .map(|&(tokens, layers, seconds)| Some(((layers * tokens) as f64, seconds - plain(tokens)?)))
        .collect();
    let deepest = cells.iter().map(|cell| cell.1).max()?;
    let whole = cells.iter().filter(|cell| cell.1 == deepest).map(|&(tokens, _, seconds)| (tokens as f64, seconds));
    let (extra, length) = (line(&extra?)?, line(&whole.collect::<Vec<_>>())?);
    Some(Captures {
        per_layer_token: extra.coefficients[1],
        extra_r2: extra.r2,
        per_token: length.coefficients[1],
        length_r2: length.r2,
        cells,
    })
}

fn line(points: &[(f64, f64)]) -> Option<Fit> {
    let rows: Vec<Vec<f64>> = points.iter().map(|(x, _)| vec![1.0, *x]).collect();
    least_squares(&rows, &points.iter().map(|(_, y)| *y).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builtin_model_is_taken_apart() {
        let builtin = Path::new(pellucid_models::builtin::NAME);
        let request = Request { repeats: 1, threads: Some(1), ..request(builtin, "f32", None) };
        let found = measure(&request).expect("measured");
        let tokens: Vec<usize> = found.phases.iter().map(|phase| phase.tokens).collect();
        assert_eq!(tokens, [1, 9, 256 - STEPS], "a step, a short prompt, and one as long as there is room");
        for phase in &found.phases {
            assert!((phase.ops.iter().map(|op| op.share).sum::<f64>() - 1.0).abs() < 1e-9, "{phase:?}");
            assert!(phase.seconds > 0.0 && phase.ops.iter().any(|op| op.name == "(attention)"), "{phase:?}");
            // All weights but the embedding, which only gathers rows, are read once a pass, whatever its length.
            let read: f64 = phase.ops.iter().map(|op| op.bytes).sum();
            assert!((read / found.phases[0].ops.iter().map(|op| op.bytes).sum::<f64>() - 1.0).abs() < 1e-9);
            assert!(read <= found.weight_bytes as f64 && read > 0.5 * found.weight_bytes as f64);
            assert_eq!(phase.of_products.is_some(), phase.tokens > 1, "{phase:?}");
        }
        let captures = found.captures.as_ref().expect("several lengths and layers");
        assert_eq!(captures.cells.len(), 3 * 4, "64, 128 and 240 tokens");
        let survey =
            Performance { model: "builtin".into(), storages: vec![found], peers: vec![("torch".into(), 1e15)] };
        assert_eq!(survey.limits().flops_per_s, 1e15, "whoever is fastest sets the limit");
    }

    #[test]
    fn costs_that_are_linear_are_found_to_be() {
        let cell = |tokens: usize, layers: usize| {
            (tokens, layers, 1.0 + 0.01 * tokens as f64 + 1e-4 * (tokens * layers) as f64)
        };
        let cells =
            [64, 128, 256].into_iter().flat_map(|tokens| [0, 4, 8].map(|layers| cell(tokens, layers))).collect();
        let found = fitted(cells).expect("a fit");
        assert!((found.per_layer_token - 1e-4).abs() < 1e-9 && (found.per_token - 0.0108).abs() < 1e-9, "{found:?}");
        assert!(found.extra_r2 > 0.999_999 && found.length_r2 > 0.999_999);
        assert_eq!(fitted(vec![(64, 0, 1.0)]), None, "one length has no line");
    }
}
