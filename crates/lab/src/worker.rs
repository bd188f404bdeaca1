//! Pellucid's worker: runs the job of one [`Request`] and returns one [`Answer`].

use crate::Result;
use crate::memory::{pss_bytes, reset_peak_rss, status_bytes};
use crate::protocol::{Answer, Job, Memory, Request, SPLICE_LENGTHS};
use crate::{counting, gpt2_shaped};
use pellucid_engine::plan::{Combine, Expr, Fold, FromSite, Pick};
use pellucid_engine::{Action, Capture, Control, GenerateOptions, Operand, Plan, Positions, RunOptions, Splice, Tap};
use pellucid_kernels::{DType, Pool};
use pellucid_models::attach::AttachOptions;
use pellucid_models::sae::read_sae;
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage, locate};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Number of values of a job's output that are compared with the oracle.
const MAX_COMPARED_VALUES: usize = 4096;

/// Loads the model, runs the job and, if there is one, the paired job, and returns times, memory
/// and outputs.
pub fn answer(request: &Request) -> Result<Answer> {
    let options = options(request)?;
    let slow = injected_slowdown()?;
    let started = Instant::now();
    let mut loaded = open(&request.model, &options)?;
    let saes = std::iter::once(request.job).chain(request.paired_job).map(Job::saes).max().unwrap_or(0);
    attach_saes(&mut loaded, &request.model, saes)?;
    let loaded = loaded;
    let top = top_tokens(&loaded, &request.tokens)?;
    let load_to_first_token_s = started.elapsed().as_secs_f64();
    let load = status_bytes("VmHWM");
    reset_peak_rss();
    let mut jobs: Vec<TimedJob> = std::iter::once(request.job).chain(request.paired_job).map(TimedJob::new).collect();
    let last = jobs.len() - 1;
    for index in 0..request.warmups + request.repeats {
        for turn in 0..=last {
            // The paired jobs alternate in who goes first.
            let timed = &mut jobs[if index.is_multiple_of(2) { turn } else { last - turn }];
            timed.output = run_once(&loaded, request, timed.job)?;
            timed.output.seconds += spin(timed.output.seconds * slow);
            if index >= request.warmups {
                timed.samples_s.push(timed.output.seconds);
            }
        }
    }
    let run = status_bytes("VmHWM");
    let mut answers = Vec::new();
    for TimedJob { job, samples_s, output } in jobs {
        answers.push(Answer {
            engine: format!("pellucid {}", env!("CARGO_PKG_VERSION")),
            load_to_first_token_s,
            samples_s,
            peak_bytes: load.max(run),
            memory: Some(Memory {
                load,
                run,
                anonymous: status_bytes("RssAnon"),
                file: status_bytes("RssFile"),
                proportional: pss_bytes(),
            }),
            weight_bytes: loaded.model.weights().bytes() as u64,
            top: top.clone(),
            decoded: output.tokens,
            values: output.values,
            control: if job.edits() { control_values(&loaded, request, job)? } else { Vec::new() },
            ..Answer::default()
        });
    }
    let paired_answer = answers.drain(1..).next().map(Box::new);
    Ok(Answer { paired_answer, ..answers.remove(0) })
}

/// Counts the heap allocations of one run of the job, after its warm-up runs. Needs an executable
/// that installs the [`counting`] allocator.
pub fn count_allocations(request: &Request) -> Result<Answer> {
    let loaded = open(&request.model, &options(request)?)?;
    for _ in 0..request.warmups + request.repeats {
        run_once(&loaded, request, request.job)?;
    }
    let (run, allocations) = counting::during(|| run_once(&loaded, request, request.job));
    run?;
    Ok(Answer { allocations, ..Answer::default() })
}

/// A job, its timed runs and the output of the latest.
struct TimedJob {
    job: Job,
    samples_s: Vec<f64>,
    output: JobOutput,
}

impl TimedJob {
    fn new(job: Job) -> TimedJob {
        TimedJob { job, samples_s: Vec::new(), output: JobOutput::default() }
    }
}

/// Load options of a request.
pub(crate) fn options(request: &Request) -> Result<LoadOptions> {
    let storage = match request.dtype.as_str() {
        "auto" => Storage::AsStored,
        "f32" => Storage::As(DType::F32),
        "bf16" => Storage::As(DType::Bf16),
        "f16" => Storage::As(DType::F16),
        "q8" => Storage::As(DType::Q8),
        other => {
            return Err(Error::usage(format!("unknown dtype {other:?}"), "use auto, f32, bf16, f16 or q8").into());
        }
    };
    Ok(LoadOptions {
        storage,
        pool: request.threads.map(|n| Arc::new(Pool::new(n))),
        assume: request.assume.clone(),
        ..LoadOptions::default()
    })
}

/// Loads the model of a path, or the built-in model by its name.
pub(crate) fn open(model: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    Ok(match locate(model.to_str())? {
        Some(path) => LoadedModel::open(&path, options, &mut |_| {})?,
        None => LoadedModel::builtin(options)?,
    })
}

/// Attaches the first SAEs of `gpt2-shaped`. Their weights are random, so there is nothing to test.
fn attach_saes(loaded: &mut LoadedModel, model: &Path, count: usize) -> Result<()> {
    for layer in gpt2_shaped::SAE_LAYERS.into_iter().take(count) {
        let sae = read_sae(&gpt2_shaped::sae_directory(model, layer))?;
        loaded.attach_sae(&sae, &AttachOptions { unchecked: true, ..AttachOptions::default() })?;
    }
    Ok(())
}

/// Environment variable that slows a worker by a fraction of each timed run, e.g.
/// `PELLUCID_LAB_SLOW=0.03`. `lab selftest` uses it to inject a known slowdown.
pub const SLOWDOWN_VARIABLE: &str = "PELLUCID_LAB_SLOW";

fn injected_slowdown() -> Result<f64> {
    let Some(text) = std::env::var_os(SLOWDOWN_VARIABLE) else { return Ok(0.0) };
    let share = text.to_str().and_then(|text| text.parse::<f64>().ok()).filter(|share| (0.0..=10.0).contains(share));
    Ok(share
        .ok_or_else(|| Error::usage(format!("{SLOWDOWN_VARIABLE} is {text:?}"), "give a fraction, such as 0.03"))?)
}

/// Busy-waits for `seconds` and returns the seconds that passed.
fn spin(seconds: f64) -> f64 {
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < seconds {
        std::hint::spin_loop();
    }
    if seconds > 0.0 { started.elapsed().as_secs_f64() } else { 0.0 }
}

/// Time and output of one run.
#[derive(Default)]
struct JobOutput {
    seconds: f64,
    tokens: Vec<u32>,
    values: Vec<f32>,
}

/// Runs the job once.
fn run_once(loaded: &LoadedModel, request: &Request, job: Job) -> Result<JobOutput> {
    let (inputs, plan) = inputs_and_plan(loaded, request, job);
    if let Some(steps) = job.steps() {
        let options = GenerateOptions { max_new: steps + 1, ..GenerateOptions::default() };
        let generation =
            loaded.model.generate(&inputs, &plan, &options, &mut |_, _| Control::Go).map_err(Error::from)?;
        // The first new token comes from the prompt; each step after it is one decode.
        let seconds = generation.decode.as_secs_f64() / steps as f64;
        return Ok(JobOutput {
            seconds,
            tokens: generation.rows[0].tokens.clone(),
            values: last_capture_values(&generation.captures),
        });
    }
    let started = Instant::now();
    let run = loaded.model.run(&inputs, &plan, &RunOptions::default()).map_err(Error::from)?;
    let mut values = Vec::new();
    if job == Job::Lens {
        let streams: Vec<&[f32]> = run.captures.iter().map(|capture| capture.array.values()).collect();
        values = loaded.model.unembed(&streams.concat()).map_err(Error::from)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if values.is_empty() {
        // A job's output is its saved value, or else its last capture: the edited row's logits, the
        // attention pattern, the last layer's residual stream.
        values =
            run.saved.last().map_or_else(|| last_capture_values(&run.captures), |saved| saved.array.values().to_vec());
    }
    values.truncate(MAX_COMPARED_VALUES);
    Ok(JobOutput { seconds, tokens: Vec::new(), values })
}

/// Returns the first values of the last capture.
fn last_capture_values(captures: &[Capture]) -> Vec<f32> {
    let all = captures.last().map_or(&[][..], |capture| capture.array.values());
    all[..all.len().min(MAX_COMPARED_VALUES)].to_vec()
}

/// Builds the input rows and the plan of a job.
fn inputs_and_plan(loaded: &LoadedModel, request: &Request, job: Job) -> (Vec<Vec<u32>>, Plan) {
    let architecture = loaded.model.program().architecture();
    let (depth, width) = (architecture.layers.len(), architecture.width);
    let middle = depth / 2;
    let last = |tap: Tap| tap.positions(Positions::Last);
    let logits = || last(Tap::new("logits", Action::Capture(None)));
    let no_op_tap = || Tap::new(format!("layers.{middle}.resid_post"), Action::Zero).positions(Positions::List(vec![]));
    // A fixed vector instead of a random one, so that every worker steers with the same values.
    let direction: Vec<f32> = (0..width).map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * 0.5).collect();
    let steer = Action::Add { operand: Operand::Vector(direction), scale: 1.0 };
    let single_row = vec![request.tokens.clone()];
    match job {
        Job::Prefill => (single_row, Plan::default().with(logits())),
        Job::Forward => (single_row, Plan::capture(["logits"])),
        Job::Decode { rows, .. } => (rotated_rows(&request.tokens, rows), Plan::default()),
        Job::Capture => {
            (single_row, Plan::default().with(logits()).with(Tap::new("layers.*.resid_post", Action::Capture(None))))
        }
        Job::CaptureLayers { layers } => {
            let captured =
                (0..layers.min(depth)).map(|l| Tap::new(format!("layers.{l}.resid_post"), Action::Capture(None)));
            (single_row, captured.fold(Plan::default().with(logits()), Plan::with))
        }
        Job::NoOpTap => (single_row, Plan::default().with(no_op_tap()).with(logits())),
        Job::NoOpTapDecode { .. } => (single_row, Plan::default().with(no_op_tap())),
        Job::Steer => {
            (single_row, Plan::default().with(Tap::new(format!("layers.{middle}.resid_post"), steer)).with(logits()))
        }
        Job::SteerDecode { .. } => {
            (single_row, Plan::default().with(Tap::new(format!("layers.{middle}.resid_post"), steer)))
        }
        Job::CaptureDecode { .. } => (single_row, Plan::capture(["layers.*.resid_post"])),
        Job::Ablate => (
            single_row,
            Plan::default().with(Tap::new(format!("layers.{middle}.mlp_act"), Action::Zero)).with(logits()),
        ),
        Job::Pattern => (single_row, Plan::capture([format!("layers.{middle}.attn_probs")])),
        Job::Lens => (single_row, Plan::default().with(last(Tap::new("layers.*.resid_post", Action::Capture(None))))),
        Job::Patch => {
            let site = format!("layers.{middle}.resid_post");
            let reversed: Vec<u32> = request.tokens.iter().rev().copied().collect();
            let from = FromSite { rows: Some(vec![0]), ..FromSite::default() };
            let patch = last(Tap::new(site, Action::Set(Operand::From(from)))).rows(vec![1]);
            (vec![request.tokens.clone(), reversed], Plan::default().with(patch).with(logits()))
        }
        Job::Attribute => {
            let reversed: Vec<u32> = request.tokens.iter().rev().copied().collect();
            let token = reversed.first().copied().unwrap_or_default();
            let plan = attribution(&format!("layers.{middle}.resid_post"), token);
            (vec![request.tokens.clone(), reversed], plan)
        }
        Job::Splice { saes } => {
            let splice = |layer| Tap::new(format!("layers.{layer}.z"), Action::Splice(Splice::Recon));
            let plan = Plan::of(gpt2_shaped::SAE_LAYERS.into_iter().take(saes).map(splice)).with(logits());
            (SPLICE_LENGTHS.map(|length| request.tokens[..length.min(request.tokens.len())].to_vec()).into(), plan)
        }
    }
}

/// Builds `rows` different rows of equal length by rotating the prompt one token further per row.
fn rotated_rows(tokens: &[u32], rows: usize) -> Vec<Vec<u32>> {
    let row = |row: usize| tokens.iter().cycle().skip(row % tokens.len().max(1)).take(tokens.len()).copied().collect();
    (0..rows).map(row).collect()
}

/// Attribution patching at `site`: estimates, to first order, the effect on `token`'s logit in row
/// 1 of replacing row 1's residual stream by row 0's, per position: `Σ_d (clean − corrupt) ·
/// ∂logit/∂corrupt`.
fn attribution(site: &str, token: u32) -> Plan {
    let mut plan = Plan::default();
    let stream = plan.read(Tap::new(site, Action::Read));
    let logits = plan.read(Tap::new("logits", Action::Read).rows([1]).positions(Positions::Last));
    let logit = plan.value(Expr::Index { of: logits, picks: vec![Pick::At(0), Pick::At(token.into())] });
    plan.metrics = vec![logit];
    let read = Action::Grad { metric: 0, action: Box::new(Action::Read) };
    let gradient = plan.read(Tap::new(site, read).rows([1]));
    let [clean, corrupt] = [0, 1].map(|row| plan.value(Expr::Row { of: stream, row }));
    let change = plan.value(Expr::Combine(Combine::Sub, clean, corrupt));
    let effect = plan.value(Expr::Combine(Combine::Mul, change, gradient));
    let each = plan.value(Expr::Fold { of: effect, how: Fold::Sum, axis: Some(-1), keep: false });
    plan.save = vec![each];
    plan
}

/// Returns the job's output without its edit. If it equals the edited output, the edit had no
/// effect.
fn control_values(loaded: &LoadedModel, request: &Request, job: Job) -> Result<Vec<f32>> {
    let plain = match job {
        Job::SteerDecode { .. } => return Ok(Vec::new()),
        Job::Patch => Request { tokens: request.tokens.iter().rev().copied().collect(), ..request.clone() },
        _ => request.clone(),
    };
    Ok(run_once(loaded, &plain, Job::Prefill)?.values)
}

pub(crate) fn top_tokens(loaded: &LoadedModel, tokens: &[u32]) -> Result<Vec<(u32, f32)>> {
    let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let run = loaded.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).map_err(Error::from)?;
    let logits = run.captures[0].array.values();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    Ok(order.iter().take(5).map(|&id| (id as u32, logits[id])).collect())
}
