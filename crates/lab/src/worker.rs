//! Our worker: one request in, one answer out.

use crate::Result;
use crate::protocol::{Answer, Job, Request};
use pellucid_engine::{Action, Control, Generate, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::{DType, Pool};
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage};
use std::sync::Arc;
use std::time::Instant;

/// Does one job.
pub fn answer(request: &Request) -> Result<Answer> {
    let storage = match request.dtype.as_str() {
        "auto" => Storage::AsStored,
        "f32" => Storage::As(DType::F32),
        "bf16" => Storage::As(DType::Bf16),
        "f16" => Storage::As(DType::F16),
        other => return Err(Error::usage(format!("there is no dtype {other:?}"), "use auto, f32, bf16 or f16").into()),
    };
    let options = LoadOptions {
        storage,
        pool: request.threads.map(|n| Arc::new(Pool::new(n))),
        assume: request.assume.clone(),
        ..LoadOptions::default()
    };
    let started = Instant::now();
    let loaded = LoadedModel::open(&request.model, &options, &mut |_| {})?;
    let top = top(&loaded, &request.tokens)?;
    let load_to_first_token_s = started.elapsed().as_secs_f64();
    let mut samples_s = Vec::new();
    let mut decoded = Vec::new();
    for index in 0..request.warmups + request.repeats {
        let (seconds, tokens) = timed(&loaded, request)?;
        if index >= request.warmups {
            samples_s.push(seconds);
        }
        decoded = tokens;
    }
    let engine = format!("pellucid {}", env!("CARGO_PKG_VERSION"));
    let weight_bytes = loaded.model.weights().bytes() as u64;
    Ok(Answer { engine, load_to_first_token_s, samples_s, peak_bytes: peak_bytes(), weight_bytes, top, decoded })
}

/// One run of the job: its seconds, and the tokens of a decode.
fn timed(loaded: &LoadedModel, request: &Request) -> Result<(f64, Vec<u32>)> {
    let input = std::slice::from_ref(&request.tokens);
    let last = Tap::new("logits", Action::Capture(None)).positions(Positions::Last);
    let plan = match request.job {
        Job::Prefill => Plan::default().with(last),
        Job::Forward => Plan::capture(["logits"]),
        Job::Capture => Plan::capture(["layers.*.resid_post"]).with(last),
        Job::Decode { steps } => {
            let options = Generate { max_new: steps + 1, ..Generate::default() };
            let generation = loaded
                .model
                .generate(input, &Plan::default(), &options, &mut |_, _| Control::Go)
                .map_err(Error::from)?;
            // The first new token comes from the prompt; each step after it is one decode.
            return Ok((generation.decode.as_secs_f64() / steps as f64, generation.rows[0].tokens.clone()));
        }
    };
    let started = Instant::now();
    let run = loaded.model.run(input, &plan, &RunOptions::default()).map_err(Error::from)?;
    let seconds = started.elapsed().as_secs_f64();
    drop(run);
    Ok((seconds, Vec::new()))
}

fn top(loaded: &LoadedModel, tokens: &[u32]) -> Result<Vec<(u32, f32)>> {
    let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let run = loaded.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).map_err(Error::from)?;
    let logits = run.captures[0].array.values();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    Ok(order.iter().take(5).map(|&id| (id as u32, logits[id])).collect())
}

/// The process's high-water mark; 0 where the system does not tell.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
