//! The worker of the benchmark: one mode in one process.

use super::mode::capture_plan;
use super::request::CaptureRequest;
use super::result::{CaptureRun, FetchTimes, Iteration, RequestTokens, TimeSplit};
use crate::memory::{cpu_seconds, reset_peak_rss, status_bytes};
use crate::worker::{open, options};
use crate::{Error, Result};
use pellucid_engine::{
    GenerateOptions, Model, PassRecord, Plan, Point, Request, RequestHandle, RunOptions, Scheduler, SchedulerOptions,
    Site,
};
use std::io::Write;
use std::time::{Duration, Instant};

/// Runs the mode of a request: warm-up, timed iterations, checks.
pub fn answer(request: &CaptureRequest) -> Result<CaptureRun> {
    let mode = request.mode().ok_or_else(|| Error::Suite {
        suite: super::NAME.into(),
        problem: format!("unknown mode `{}`", request.job),
    })?;
    let settings = crate::protocol::Request {
        model: request.model.clone(),
        dtype: request.dtype.clone(),
        threads: request.threads,
        assume: request.assume.clone(),
        job: crate::protocol::Job::Prefill,
        paired_job: None,
        tokens: vec![],
        warmups: 0,
        repeats: 0,
    };
    let loaded = open(&request.model, &options(&settings)?)?;
    let plan = mode.plan(&request.layers);
    let mut run = CaptureRun { engine: format!("pellucid {}", env!("CARGO_PKG_VERSION")), ..CaptureRun::default() };
    let scheduler = new_scheduler(&loaded.model, request)?;
    let mut first_request = Vec::new();
    run.resident_bytes = status_bytes("VmRSS");
    reset_peak_rss();
    for index in 0..request.warmups + request.iterations {
        let generated = generate(&scheduler, &plan, request)?;
        let mut fetched = fetch(generated.handles, request.profile_fetch)?;
        run.check(request, &fetched);
        first_request = fetched.captures.swap_remove(0);
        if index >= request.warmups {
            let (times, iteration) = (fetched.times, generated.iteration);
            let fetch_time = times.hand_over + times.copy;
            run.iterations.push(Iteration {
                iteration: index + 1 - request.warmups,
                fetch_time,
                total_time: iteration.generation_time + fetch_time,
                fetch: times,
                ..iteration
            });
        }
    }
    run.peak_bytes = status_bytes("VmHWM");
    drop(scheduler);
    if mode.captures() {
        run.equals_forward_pass = Some(equals_forward_pass(&loaded.model, request, &run.tokens[0], &first_request)?);
    }
    if request.profile {
        run.split = Some(split(&loaded.model, &plan, request)?);
    }
    Ok(run)
}

/// Starts a scheduler that takes all requests into every pass, without a prefix cache.
fn new_scheduler(model: &Model, request: &CaptureRequest) -> Result<Scheduler> {
    let options = SchedulerOptions {
        max_rows: request.prompts.len(),
        kv_bytes: usize::MAX,
        capture_bytes: usize::MAX,
        prefix_bytes: 0,
        record_passes: true,
        ..SchedulerOptions::default()
    };
    Scheduler::new(model, options).map_err(engine)
}

fn engine(error: pellucid_engine::Error) -> Error {
    Error::Model(error.into())
}

/// A finished generation whose results have not been fetched.
struct Generated {
    handles: Vec<RequestHandle>,
    iteration: Iteration,
}

/// Submits all requests at once and waits for the last token of each.
fn generate(scheduler: &Scheduler, plan: &Plan, request: &CaptureRequest) -> Result<Generated> {
    let first_pass = scheduler.passes().len();
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut handles = Vec::with_capacity(request.prompts.len());
    for (prompt, &max_new) in request.prompts.iter().zip(&request.new_tokens) {
        // No end-of-sequence token, so that every request yields exactly `max_new` tokens.
        let options = GenerateOptions { max_new, eos: vec![], ..GenerateOptions::default() };
        handles.push(scheduler.submit(Request::new(prompt.clone(), plan.clone(), options)).map_err(engine)?);
    }
    for handle in &handles {
        while handle.next_token().is_some() {}
    }
    let generation_time = started.elapsed().as_secs_f64();
    let cpu_time = cpu_seconds() - cpu;
    let passes = scheduler.passes();
    let passes = &passes[first_pass..];
    let in_passes: f64 = passes.iter().map(|pass| pass.duration.as_secs_f64()).sum();
    let counts = passes.iter().map(|pass| pass.requests.len());
    let tokens: usize = request.prompts.iter().map(Vec::len).sum::<usize>() + request.new_tokens.iter().sum::<usize>();
    let iteration = Iteration {
        generation_time,
        cpu_time,
        throughput_tokens_per_sec: tokens as f64 / generation_time,
        prefill_tokens_per_sec: rate(passes, |prompt, decode| if decode == 0 { prompt } else { 0 }),
        decode_tokens_per_sec: rate(passes, |prompt, decode| if prompt == 0 { decode } else { 0 }),
        outside_passes_time: generation_time - in_passes,
        mean_concurrency: counts.clone().sum::<usize>() as f64 / passes.len().max(1) as f64,
        max_concurrency: counts.max().unwrap_or(0),
        ..Iteration::default()
    };
    Ok(Generated { handles, iteration })
}

/// Tokens per second of the passes for which `count` (of prompt and decode tokens) is not 0.
fn rate(passes: &[PassRecord], count: impl Fn(usize, usize) -> usize) -> f64 {
    let (mut tokens, mut time) = (0, Duration::ZERO);
    for pass in passes {
        let prompt = pass.requests.iter().map(|share| share.prompt_tokens).sum();
        let decode = pass.requests.iter().map(|share| share.decode_tokens).sum();
        let counted = count(prompt, decode);
        if counted > 0 {
            tokens += counted;
            time += pass.duration;
        }
    }
    if tokens > 0 { tokens as f64 / time.as_secs_f64() } else { 0.0 }
}

/// A captured array that the caller owns.
struct OwnedCapture {
    shape: Vec<usize>,
    positions: Vec<usize>,
    values: Vec<f32>,
}

/// The results of all requests.
struct Fetched {
    tokens: Vec<Vec<u32>>,
    reused: Vec<usize>,
    captures: Vec<Vec<OwnedCapture>>,
    times: FetchTimes,
}

/// Receives the results and copies every captured array to memory of its own.
fn fetch(handles: Vec<RequestHandle>, to_file: bool) -> Result<Fetched> {
    let started = Instant::now();
    let generations = handles.into_iter().map(|handle| handle.wait().map_err(engine)).collect::<Result<Vec<_>>>()?;
    let hand_over = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let (mut tokens, mut reused, mut captures) = (Vec::new(), Vec::new(), Vec::new());
    for generation in generations {
        let own = generation.captures.iter().map(|capture| OwnedCapture {
            shape: capture.array.shape().to_vec(),
            positions: capture.positions.clone(),
            values: capture.array.values().to_vec(),
        });
        captures.push(own.collect());
        tokens.push(generation.rows.into_iter().next().map(|row| row.tokens).unwrap_or_default());
        reused.push(generation.reused.first().copied().unwrap_or(0));
    }
    let copy = started.elapsed().as_secs_f64();
    let file = to_file.then(|| write_to_file(&captures)).transpose()?;
    Ok(Fetched { tokens, reused, captures, times: FetchTimes { hand_over, copy, file } })
}

/// Writes all arrays to a temporary file and returns the seconds.
fn write_to_file(captures: &[Vec<OwnedCapture>]) -> Result<f64> {
    let write = || -> std::io::Result<f64> {
        let started = Instant::now();
        let mut file = std::io::BufWriter::with_capacity(1 << 20, tempfile::tempfile()?);
        for capture in captures.iter().flatten() {
            for chunk in capture.values.chunks(1 << 14) {
                let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
                file.write_all(&bytes)?;
            }
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        Ok(started.elapsed().as_secs_f64())
    };
    write().map_err(|error| Error::File { path: "a temporary file".into(), problem: error.to_string() })
}

impl CaptureRun {
    /// Checks one iteration: token counts, and for each array its positions, shape and elements.
    fn check(&mut self, request: &CaptureRequest, fetched: &Fetched) {
        let mut problem = |text: String| {
            if self.problems.len() < 8 {
                self.problems.push(text);
            }
        };
        let (mut bytes, mut requests) = (0, Vec::new());
        for (index, captures) in fetched.captures.iter().enumerate() {
            let (prompt, generated) = (request.prompts[index].len(), fetched.tokens[index].len());
            if generated != request.new_tokens[index] {
                problem(format!("request {index} generated {generated} of {} tokens", request.new_tokens[index]));
            }
            let expected = prompt + generated - 1;
            let selected = captures.iter().filter(|capture| !capture.positions.is_empty());
            if selected.clone().count() != request.layers.len() {
                problem(format!("request {index} has {} captures, not {}", captures.len(), request.layers.len()));
            }
            let mut captured_positions = 0;
            for capture in selected {
                captured_positions = capture.positions.len();
                if !capture.positions.iter().copied().eq(0..expected) || capture.shape.first() != Some(&expected) {
                    problem(format!("request {index} captured {captured_positions} positions of {expected}"));
                }
                if capture.values.iter().any(|value| !value.is_finite()) {
                    problem(format!("request {index} captured a non-finite activation"));
                }
                bytes += size_of_val(&capture.values[..]) as u64;
                self.rows_checked += 1;
            }
            requests.push(RequestTokens { prompt, generated, captured_positions, reused: fetched.reused[index] });
        }
        if !self.tokens.is_empty() && self.tokens != fetched.tokens {
            problem("two iterations generated different tokens".into());
        }
        if fetched.reused.iter().any(|&reused| reused > 0) {
            problem("a prompt was taken from a prefix cache".into());
        }
        (self.tokens, self.requests, self.captured_bytes) = (fetched.tokens.clone(), requests, bytes);
        self.sample = sample(request, &fetched.captures[0]).unwrap_or_default();
    }
}

/// The middle captured layer of the first request at its last prompt position.
fn sample(request: &CaptureRequest, captures: &[OwnedCapture]) -> Option<Vec<f32>> {
    let capture = captures.get(request.layers.len() / 2).filter(|capture| !capture.positions.is_empty())?;
    let width = capture.values.len() / capture.positions.len();
    Some(capture.values[(request.prompts[0].len() - 1) * width..][..width].to_vec())
}

/// Compares the first request's captures bit by bit with those of one forward pass over its prompt
/// and all new tokens but the last.
fn equals_forward_pass(
    model: &Model,
    request: &CaptureRequest,
    new: &[u32],
    captures: &[OwnedCapture],
) -> Result<bool> {
    let text: Vec<u32> = request.prompts[0].iter().chain(&new[..new.len() - 1]).copied().collect();
    let forward = model.run(&[text], &capture_plan(&request.layers), &RunOptions::default()).map_err(engine)?;
    let equal = |a: &[f32], b: &[f32]| a.iter().map(|x| x.to_bits()).eq(b.iter().map(|x| x.to_bits()));
    Ok(forward.captures.len() == captures.len()
        && forward.captures.iter().zip(captures).all(|(a, b)| equal(a.array.values(), &b.values)))
}

/// Profiles a generation without and with the plan, and attributes the difference of the ops that
/// produce tapped activations to the plan.
fn split(model: &Model, plan: &Plan, request: &CaptureRequest) -> Result<TimeSplit> {
    let program = model.program();
    let tapped: Vec<usize> = (0..program.architecture().layers.len())
        .filter_map(|layer| program.edge_of(Site::layer(layer, Point::ResidPost)))
        .map(|edge| program.edge(edge).producer)
        .collect();
    let (model, profile) = model.profiled();
    let mut measured = Vec::new();
    // The first generation warms up the profiled model.
    for plan in [&Plan::default(), &Plan::default(), plan] {
        profile.clear();
        let scheduler = new_scheduler(&model, request)?;
        let generated = generate(&scheduler, plan, request)?;
        let times = profile.times();
        let all: f64 = times.iter().map(|op| op.seconds).sum();
        let at_taps: f64 = times.iter().filter(|op| tapped.contains(&op.op)).map(|op| op.seconds).sum();
        measured.push((generated.iteration.generation_time, all, at_taps));
    }
    let ((without, all_without, taps_without), (with, all_with, taps_with)) = (measured[1], measured[2]);
    let copy = taps_with - taps_without;
    Ok(TimeSplit {
        forward: all_with - copy,
        copy,
        outside_ops: with - all_with,
        outside_ops_without_plan: without - all_without,
    })
}
