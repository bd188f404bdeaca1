//! Roofline model: the FLOP/s of a model's matmuls against the machine's memory bandwidth and peak
//! matmul rate.
//!
//! An op with few operations per byte of weights is memory-bound; one with many is compute-bound.
//! Both limits are measured here, briefly, with the same threads as the ops.

use crate::executor::run_process;
use crate::protocol::{Request, prompt};
use crate::suite::Variant;
use crate::{Result, worker};
use pellucid_engine::profile::{OpTime, work};
use pellucid_engine::program::OpKind;
use pellucid_engine::{Action, Control, GenerateOptions, Model, Plan, Positions, Program, RunOptions, Tap};
use pellucid_kernels::memory::AlignedBuffer;
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use pellucid_models::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prompt length.
const TOKENS: usize = 128;
/// Time limit of the process.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Decode steps after the prompt.
pub(crate) const STEPS: usize = 16;
/// Number of runs; the fastest of each op counts.
const ROUNDS: usize = 3;

/// A machine's limits and the rates of a model's matmuls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Model name or path.
    pub model: String,
    /// Weight dtype.
    pub dtype: String,
    /// Threads.
    pub threads: usize,
    /// Memory read bandwidth, in bytes per second.
    pub bytes_per_s: f64,
    /// FLOP/s of our fastest matmul, on matrices that stay in the cache.
    pub flops_per_s: f64,
    /// The matmuls.
    pub ops: Vec<OpRate>,
}

/// All matmuls with one weight's name in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpRate {
    /// Name of the weight, without its layer.
    pub name: String,
    /// `prompt` or `step`.
    pub phase: String,
    /// Total seconds.
    pub seconds: f64,
    /// Fraction of the phase's time.
    pub share: f64,
    /// Multiplications and additions (FLOPs).
    pub flops: f64,
    /// Bytes of weights read.
    pub bytes: f64,
}

impl OpRate {
    /// Arithmetic intensity: FLOPs per byte of weights.
    pub fn intensity(&self) -> f64 {
        self.flops / self.bytes
    }

    /// FLOP/s.
    pub fn flops_per_s(&self) -> f64 {
        self.flops / self.seconds
    }

    /// Bytes of weights per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes / self.seconds
    }
}

impl Roofline {
    /// Returns the maximum FLOP/s at an arithmetic intensity.
    pub fn limit(&self, intensity: f64) -> f64 {
        (self.bytes_per_s * intensity).min(self.flops_per_s)
    }
}

/// Measures a Pellucid variant in a fresh process, with the model, dtype and threads of `request`.
pub(crate) fn measure_in_process(
    variant: &Variant,
    request: Request,
    pellucid: &Path,
) -> std::result::Result<Roofline, String> {
    let request = Request { tokens: prompt(TOKENS), ..request };
    let mut command = Command::new(variant.binary.as_deref().unwrap_or(pellucid));
    command.args(["lab", "__roofline"]).envs(&variant.env);
    let found = run_process(&mut command, &request, TIMEOUT);
    found.map(|(found, _)| found).map_err(|(kind, message)| format!("its process {}: {message}", kind.name()))
}

/// Names an op after its weight, without the layer, or after its kind, in parentheses, if it has no
/// weight.
pub fn op_name(program: &Program, op: usize) -> String {
    let op = &program.ops()[op];
    match &op.kind {
        OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => {
            let name = &program.weight(linear.weight).name;
            let own = op.layer.and_then(|layer| name.strip_prefix(&format!("layers.{layer}.")));
            own.unwrap_or(name).to_string()
        }
        other => format!("({})", other.name()),
    }
}

/// Measures the prompt of a request, then a few decode steps.
pub fn measure(request: &Request) -> Result<Roofline> {
    let loaded = worker::open(&request.model, &worker::options(request)?)?;
    let pool = request.threads.map_or_else(Pool::global, |n| Arc::new(Pool::new(n)));
    // The prompt and the decode steps must fit into the model's context.
    let max_prompt = loaded.model.program().architecture().context.unwrap_or(usize::MAX).saturating_sub(STEPS).max(1);
    let tokens = &request.tokens[..request.tokens.len().min(max_prompt)];
    let mut ops = Vec::new();
    for phase in ["prompt", "step"] {
        ops.extend(fastest_ops(&loaded.model, tokens, phase, ROUNDS)?);
    }
    Ok(Roofline {
        model: request.model.display().to_string(),
        dtype: request.dtype.clone(),
        threads: pool.threads(),
        bytes_per_s: read_rate(&pool),
        flops_per_s: matmul_rate(&pool),
        // Attention multiplies too, but reads no weights.
        ops: ops.into_iter().filter(|rate| rate.flops > 0.0 && rate.bytes > 0.0 && rate.seconds > 0.0).collect(),
    })
}

/// Returns the ops of a phase by name, each from its fastest round.
pub(crate) fn fastest_ops(model: &Model, tokens: &[u32], phase: &str, rounds: usize) -> Result<Vec<OpRate>> {
    let (profiled, profile) = model.profiled();
    let mut fastest: BTreeMap<String, OpRate> = BTreeMap::new();
    for _ in 0..rounds {
        profile.clear();
        run_phase(&profiled, tokens, phase)?;
        let times: Vec<OpTime> = profile.times();
        // Generation starts with the prompt; decode steps have one token.
        let times: Vec<&OpTime> = times.iter().filter(|t| phase == "prompt" || t.tokens == 1).collect();
        for (name, rate) in rates(model, &times, phase) {
            let best = fastest.entry(name).or_insert_with(|| rate.clone());
            if rate.seconds < best.seconds {
                *best = rate;
            }
        }
    }
    Ok(fastest.into_values().collect())
}

/// Runs a prompt, or the decode steps after one. Returns the seconds of the prompt or of all steps.
pub(crate) fn run_phase(model: &Model, tokens: &[u32], phase: &str) -> Result<f64> {
    let rows = [tokens.to_vec()];
    if phase == "prompt" {
        let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
        let started = Instant::now();
        model.run(&rows, &plan, &RunOptions::default()).map_err(Error::from)?;
        Ok(started.elapsed().as_secs_f64())
    } else {
        let options = GenerateOptions { max_new: STEPS + 1, ..GenerateOptions::default() };
        let generation =
            model.generate(&rows, &Plan::default(), &options, &mut |_, _| Control::Go).map_err(Error::from)?;
        Ok(generation.decode.as_secs_f64())
    }
}

fn rates(model: &Model, times: &[&OpTime], phase: &str) -> BTreeMap<String, OpRate> {
    let total: f64 = times.iter().map(|time| time.seconds).sum();
    let mut rates: BTreeMap<String, OpRate> = BTreeMap::new();
    for time in times {
        let name = op_name(model.program(), time.op);
        let none = OpRate { name: name.clone(), phase: phase.into(), seconds: 0.0, share: 0.0, flops: 0.0, bytes: 0.0 };
        let rate = rates.entry(name).or_insert(none);
        let work = work(model.program(), model.weights(), time.op, time.computed, time.pairs);
        rate.seconds += time.seconds;
        rate.flops += work.flops;
        rate.bytes += work.weight_bytes;
        rate.share = rate.seconds / total.max(f64::MIN_POSITIVE);
    }
    rates
}

/// Measures the memory read bandwidth of all threads: the best of several attempts and access
/// patterns, on memory allocated like the weights. Each thread reads its part in one or several
/// interleaved streams, which keep more reads in flight.
pub(crate) fn read_rate(pool: &Pool) -> f64 {
    // Larger than the caches of servers, which a small virtual machine may have to itself.
    const BYTES: usize = 768 << 20;
    const STREAMS: [usize; 4] = [1, 2, 4, 8];
    let mut memory = AlignedBuffer::<u16>::zeroed_in_slab(pool, BYTES / 2);
    memory.iter_mut().enumerate().for_each(|(i, x)| *x = i as u16);
    let parts: Vec<&[u16]> = memory.chunks(memory.len().div_ceil(pool.threads())).collect();
    let seconds = |streams: usize| {
        fastest_run(6, || {
            pool.run(parts.len(), &|part| {
                black_box(sum_in_streams(parts[part], streams));
            })
        })
    };
    BYTES as f64 / STREAMS.map(seconds).into_iter().fold(f64::INFINITY, f64::min)
}

/// Sums `values` one cache line at a time, alternating between `streams` equally spaced positions.
fn sum_in_streams(values: &[u16], streams: usize) -> [u16; 32] {
    let (lines, _) = values.as_chunks::<32>();
    let stride = lines.len() / streams;
    let mut sums = [0u16; 32];
    for line in 0..stride {
        for stream in 0..streams {
            let line = &lines[stream * stride + line];
            sums.iter_mut().zip(line).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
        }
    }
    sums
}

/// Measures the FLOP/s of matmuls whose operands stay in the cache: the best of several sizes and
/// repetitions.
pub(crate) fn matmul_rate(pool: &Pool) -> f64 {
    let rate = |(rows, columns, inner): (usize, usize, usize)| {
        let weights = Matrix::pack(pool, columns, inner, DType::F32, &|_, out| out.fill(0.5));
        let (x, mut y) = (vec![0.25f32; rows * inner], vec![0.0f32; rows * columns]);
        let seconds = fastest_run(20, || matmul(pool, black_box(&x), &weights, None, &mut y));
        (2 * rows * columns * inner) as f64 / seconds
    };
    let sizes =
        [(128, 256, 256), (256, 512, 256), (512, 512, 512), (256, 1024, 512), (512, 1536, 576), (512, 576, 1536)];
    sizes.map(rate).into_iter().fold(0.0, f64::max)
}

/// Measures the FLOP/s of prompt-sized matmuls over 50 ms. The clock speed of a processor changes,
/// so a pass is compared with matmuls that ran just before it.
pub(crate) fn sustained_matmul_rate(pool: &Pool) -> f64 {
    const MIN_DURATION: Duration = Duration::from_millis(50);
    let (rows, columns, inner) = (512, 576, 1536);
    let weights = Matrix::pack(pool, columns, inner, DType::F32, &|_, out| out.fill(0.5));
    let (x, mut y) = (vec![0.25f32; rows * inner], vec![0.0f32; rows * columns]);
    let mut product = || matmul(pool, black_box(&x), &weights, None, &mut y);
    product();
    let (started, mut products) = (Instant::now(), 0);
    while started.elapsed() < MIN_DURATION {
        product();
        products += 1;
    }
    (2 * rows * columns * inner * products) as f64 / started.elapsed().as_secs_f64()
}

/// Returns the minimum seconds over `runs` calls.
fn fastest_run(runs: usize, mut run: impl FnMut()) -> f64 {
    let mut timed = || {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    };
    (0..runs).map(|_| timed()).fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Job;

    #[test]
    fn the_roofline_of_the_builtin_model_is_measured() {
        let request = Request {
            model: pellucid_models::builtin::NAME.into(),
            dtype: "f32".into(),
            threads: Some(1),
            assume: None,
            job: Job::Prefill,
            paired_job: None,
            tokens: (0..32).map(|i| 20 + i).collect(),
            warmups: 0,
            repeats: 1,
        };
        let found = measure(&request).expect("measured");
        assert!(found.bytes_per_s > 1e8 && found.flops_per_s > 1e8, "{found:?}");
        for phase in ["prompt", "step"] {
            let ops: Vec<&OpRate> = found.ops.iter().filter(|op| op.phase == phase).collect();
            assert!(ops.len() >= 3 && ops.iter().map(|op| op.share).sum::<f64>() < 1.01, "{ops:?}");
        }
        let intensity = |phase: &str| found.ops.iter().find(|op| op.phase == phase).expect("an op").intensity();
        assert!(intensity("prompt") > intensity("step"), "more tokens share the bytes of a weight");
        assert!(found.limit(1e-6) < found.limit(1e6) && found.limit(1e9) == found.flops_per_s);
    }
}
