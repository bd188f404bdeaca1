//! The roofline: how fast the products of a model run, against how fast this machine can read memory and multiply.
//!
//! An op that does few operations for each byte of weights that it reads cannot be faster than memory; one that does many cannot be faster
//! than the multipliers. Both limits are measured here, shortly, with the threads that the ops have.

use crate::executor::run_process;
use crate::protocol::{Request, prompt};
use crate::suite::Variant;
use crate::{Result, worker};
use pellucid_engine::profile::{OpTime, work};
use pellucid_engine::program::OpKind;
use pellucid_engine::{Action, Control, GenerateOptions, Model, Plan, Positions, Program, RunOptions, Tap};
use pellucid_kernels::memory::Aligned;
use pellucid_kernels::{DType, Matrix, Pool, matmul};
use pellucid_models::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of the prompt.
const TOKENS: usize = 128;
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Tokens that are decoded after the prompt.
pub(crate) const STEPS: usize = 16;
/// Runs, of which each op's fastest is kept.
const ROUNDS: usize = 3;

/// A machine's limits and a model's products under them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// The model, as it was named.
    pub model: String,
    /// How its weights were kept.
    pub dtype: String,
    /// Threads.
    pub threads: usize,
    /// Bytes a second that this machine reads from memory.
    pub bytes_per_s: f64,
    /// Operations a second of the fastest product of ours here, on matrices that stay in the cache.
    pub flops_per_s: f64,
    /// The products.
    pub ops: Vec<OpRate>,
}

/// All products with one weight's name in one phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpRate {
    /// The weight, over all layers.
    pub name: String,
    /// `prompt` or `step`.
    pub phase: String,
    /// Seconds that they took.
    pub seconds: f64,
    /// The part of their phase's time.
    pub share: f64,
    /// Multiplications and additions.
    pub flops: f64,
    /// Bytes of weights that were read.
    pub bytes: f64,
}

impl OpRate {
    /// Operations for each byte.
    pub fn intensity(&self) -> f64 {
        self.flops / self.bytes
    }

    /// Operations a second.
    pub fn flops_per_s(&self) -> f64 {
        self.flops / self.seconds
    }

    /// Bytes of weights a second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes / self.seconds
    }
}

impl Roofline {
    /// Operations a second that an intensity allows.
    pub fn limit(&self, intensity: f64) -> f64 {
        (self.bytes_per_s * intensity).min(self.flops_per_s)
    }
}

/// Measures a variant of ours in a fresh process of its executable, with the model, dtype and threads of `request`.
pub(crate) fn in_process(
    variant: &Variant,
    request: Request,
    pellucid: &Path,
) -> std::result::Result<Roofline, String> {
    let request = Request { tokens: prompt(TOKENS), ..request };
    let mut command = Command::new(variant.binary.as_deref().unwrap_or(pellucid));
    command.args(["lab", "__roofline"]).envs(&variant.env);
    let found = run_process(&mut command, &request, LIMIT);
    found.map(|(found, _)| found).map_err(|(how, said)| format!("its process {}: {said}", how.name()))
}

/// What an op is called after its weight, without its layer; in parentheses where it has none.
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

/// Measures the model of a request: its prompt, then a few steps of decoding.
pub fn measure(request: &Request) -> Result<Roofline> {
    let loaded = worker::open(&request.model, &worker::options(request)?)?;
    let pool = request.threads.map_or_else(Pool::global, |n| Arc::new(Pool::new(n)));
    // A small model may have no room for the whole prompt and the steps after it.
    let room = loaded.model.program().architecture().context.unwrap_or(usize::MAX).saturating_sub(STEPS).max(1);
    let tokens = &request.tokens[..request.tokens.len().min(room)];
    let mut ops = Vec::new();
    for phase in ["prompt", "step"] {
        ops.extend(fastest(&loaded.model, tokens, phase, ROUNDS)?);
    }
    Ok(Roofline {
        model: request.model.display().to_string(),
        dtype: request.dtype.clone(),
        threads: pool.threads(),
        bytes_per_s: read_rate(&pool),
        flops_per_s: product_rate(&pool),
        // Attention has products, too, but no weights to read.
        ops: ops.into_iter().filter(|rate| rate.flops > 0.0 && rate.bytes > 0.0 && rate.seconds > 0.0).collect(),
    })
}

/// The ops of a phase by their names, each as in its fastest round.
pub(crate) fn fastest(model: &Model, tokens: &[u32], phase: &str, rounds: usize) -> Result<Vec<OpRate>> {
    let (profiled, profile) = model.profiled();
    let mut fastest: BTreeMap<String, OpRate> = BTreeMap::new();
    for _ in 0..rounds {
        profile.clear();
        go(&profiled, tokens, phase)?;
        let times: Vec<OpTime> = profile.times();
        // Generating begins with the prompt; its steps are those of one token.
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

/// A prompt, or the steps after one; the seconds of the prompt, or of all steps together.
pub(crate) fn go(model: &Model, tokens: &[u32], phase: &str) -> Result<f64> {
    let rows = [tokens.to_vec()];
    if phase == "prompt" {
        let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
        let started = Instant::now();
        model.run(&rows, &plan, &RunOptions::default()).map_err(Error::from)?;
        Ok(started.elapsed().as_secs_f64())
    } else {
        let options = GenerateOptions { max_new: STEPS + 1, ..GenerateOptions::default() };
        let made = model.generate(&rows, &Plan::default(), &options, &mut |_, _| Control::Go).map_err(Error::from)?;
        Ok(made.decode.as_secs_f64())
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

/// Bytes a second read by all threads from memory that no cache holds: the best of a few times and ways. The memory is as weights have it,
/// and each thread reads its share in one stream or in several at once, which keeps more reads under way.
pub(crate) fn read_rate(pool: &Pool) -> f64 {
    // Servers have caches of hundreds of megabytes, and a small virtual machine on one may have them all to itself.
    const BYTES: usize = 768 << 20;
    const STREAMS: [usize; 4] = [1, 2, 4, 8];
    let mut memory = Aligned::<u16>::lasting(pool, BYTES / 2);
    memory.iter_mut().enumerate().for_each(|(i, x)| *x = i as u16);
    let parts: Vec<&[u16]> = memory.chunks(memory.len().div_ceil(pool.threads())).collect();
    let seconds = |streams: usize| {
        best(6, || {
            pool.run(parts.len(), &|part| {
                black_box(sum_in_streams(parts[part], streams));
            })
        })
    };
    BYTES as f64 / STREAMS.map(seconds).into_iter().fold(f64::INFINITY, f64::min)
}

/// Reads numbers a cache line at a time, in turn from so many places at equal distances.
fn sum_in_streams(numbers: &[u16], streams: usize) -> [u16; 32] {
    let (lines, _) = numbers.as_chunks::<32>();
    let apart = lines.len() / streams;
    let mut sums = [0u16; 32];
    for line in 0..apart {
        for stream in 0..streams {
            let line = &lines[stream * apart + line];
            sums.iter_mut().zip(line).for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
        }
    }
    sums
}

/// Operations a second of products whose operands stay in the cache: the best of a few sizes and times.
pub(crate) fn product_rate(pool: &Pool) -> f64 {
    let rate = |(rows, columns, inner): (usize, usize, usize)| {
        let weights = Matrix::pack(pool, columns, inner, DType::F32, &|_, out| out.fill(0.5));
        let (x, mut y) = (vec![0.25f32; rows * inner], vec![0.0f32; rows * columns]);
        let seconds = best(20, || matmul(pool, black_box(&x), &weights, None, &mut y));
        (2 * rows * columns * inner) as f64 / seconds
    };
    let sizes =
        [(128, 256, 256), (256, 512, 256), (512, 512, 512), (256, 1024, 512), (512, 1536, 576), (512, 576, 1536)];
    sizes.map(rate).into_iter().fold(0.0, f64::max)
}

/// Operations a second of products of a prompt's size, kept up for a while: what a pass that follows at once can be held against, since a processor's
/// speed changes from moment to moment.
pub(crate) fn lasting_product_rate(pool: &Pool) -> f64 {
    const LEAST: Duration = Duration::from_millis(50);
    let (rows, columns, inner) = (512, 576, 1536);
    let weights = Matrix::pack(pool, columns, inner, DType::F32, &|_, out| out.fill(0.5));
    let (x, mut y) = (vec![0.25f32; rows * inner], vec![0.0f32; rows * columns]);
    let mut product = || matmul(pool, black_box(&x), &weights, None, &mut y);
    product();
    let (started, mut products) = (Instant::now(), 0);
    while started.elapsed() < LEAST {
        product();
        products += 1;
    }
    (2 * rows * columns * inner * products) as f64 / started.elapsed().as_secs_f64()
}

/// The fewest seconds of some runs.
fn best(runs: usize, mut run: impl FnMut()) -> f64 {
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
    fn the_products_of_the_builtin_model_lie_under_the_roof() {
        let request = Request {
            model: pellucid_models::builtin::NAME.into(),
            dtype: "f32".into(),
            threads: Some(1),
            assume: None,
            job: Job::Prefill,
            beside: None,
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
