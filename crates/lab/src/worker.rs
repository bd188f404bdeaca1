//! Our worker: one request in, one answer out.

use crate::Result;
use crate::counting;
use crate::memory::{forget_peak, proportional, status};
use crate::protocol::{Answer, Job, Memory, Request};
use pellucid_engine::plan::{Combine, Expr, Fold, FromSite, Pick};
use pellucid_engine::{Action, Capture, Control, GenerateOptions, Operand, Plan, Positions, RunOptions, Tap};
use pellucid_kernels::{DType, Pool};
use pellucid_models::{Error, LoadOptions, LoadedModel, Storage, locate};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Numbers of a job's output that are compared.
const COMPARED: usize = 4096;

/// Does one job.
pub fn answer(request: &Request) -> Result<Answer> {
    let options = options(request)?;
    let slow = slowness()?;
    let started = Instant::now();
    let loaded = open(&request.model, &options)?;
    let top = top(&loaded, &request.tokens)?;
    let load_to_first_token_s = started.elapsed().as_secs_f64();
    let load = status("VmHWM");
    forget_peak();
    let mut jobs: Vec<Timed> = std::iter::once(request.job).chain(request.beside).map(Timed::new).collect();
    let last = jobs.len() - 1;
    for index in 0..request.warmups + request.repeats {
        for turn in 0..=last {
            // Each goes first as often as the other.
            let timed = &mut jobs[if index.is_multiple_of(2) { turn } else { last - turn }];
            timed.made = one(&loaded, request, timed.job)?;
            timed.made.seconds += spin(timed.made.seconds * slow);
            if index >= request.warmups {
                timed.samples_s.push(timed.made.seconds);
            }
        }
    }
    let run = status("VmHWM");
    // After the timed runs: counting would disturb them.
    let allocations = match counting::is_asked() {
        true => {
            let (counted, found) = counting::during(|| one(&loaded, request, request.job));
            counted?;
            found
        }
        false => None,
    };
    let mut answers = Vec::new();
    for Timed { job, samples_s, made } in jobs {
        answers.push(Answer {
            engine: format!("pellucid {}", env!("CARGO_PKG_VERSION")),
            load_to_first_token_s,
            samples_s,
            peak_bytes: load.max(run),
            memory: Some(Memory {
                load,
                run,
                anonymous: status("RssAnon"),
                file: status("RssFile"),
                proportional: proportional(),
            }),
            allocations,
            weight_bytes: loaded.model.weights().bytes() as u64,
            top: top.clone(),
            decoded: made.tokens,
            values: made.values,
            control: if job.edits() { control(&loaded, request, job)? } else { Vec::new() },
            beside: None,
        });
    }
    let beside = answers.drain(1..).next().map(Box::new);
    Ok(Answer { beside, ..answers.remove(0) })
}

/// A job and its runs.
struct Timed {
    job: Job,
    samples_s: Vec<f64>,
    made: Made,
}

impl Timed {
    fn new(job: Job) -> Timed {
        Timed { job, samples_s: Vec::new(), made: Made::default() }
    }
}

/// How a request wants its model loaded.
pub(crate) fn options(request: &Request) -> Result<LoadOptions> {
    let storage = match request.dtype.as_str() {
        "auto" => Storage::AsStored,
        "f32" => Storage::As(DType::F32),
        "bf16" => Storage::As(DType::Bf16),
        "f16" => Storage::As(DType::F16),
        "q8" => Storage::As(DType::Q8),
        other => {
            return Err(Error::usage(format!("there is no dtype {other:?}"), "use auto, f32, bf16, f16 or q8").into());
        }
    };
    Ok(LoadOptions {
        storage,
        pool: request.threads.map(|n| Arc::new(Pool::new(n))),
        assume: request.assume.clone(),
        ..LoadOptions::default()
    })
}

/// The model of a path, or the one inside this program by its name.
pub(crate) fn open(model: &Path, options: &LoadOptions) -> Result<LoadedModel> {
    Ok(match locate(model.to_str())? {
        Some(path) => LoadedModel::open(&path, options, &mut |_| {})?,
        None => LoadedModel::builtin(options)?,
    })
}

/// The environment variable that makes a worker slower by a share of each timed run, so that the lab can be tried on a loss that is known:
/// `PELLUCID_LAB_SLOW=0.03`.
pub const SLOW: &str = "PELLUCID_LAB_SLOW";

fn slowness() -> Result<f64> {
    let Some(text) = std::env::var_os(SLOW) else { return Ok(0.0) };
    let share = text.to_str().and_then(|text| text.parse::<f64>().ok()).filter(|share| (0.0..=10.0).contains(share));
    Ok(share.ok_or_else(|| Error::usage(format!("{SLOW} is {text:?}"), "give a share, such as 0.03"))?)
}

/// Keeps the processor busy for some seconds, and returns those that passed.
fn spin(seconds: f64) -> f64 {
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < seconds {
        std::hint::spin_loop();
    }
    if seconds > 0.0 { started.elapsed().as_secs_f64() } else { 0.0 }
}

/// What one run of a job made.
#[derive(Default)]
struct Made {
    seconds: f64,
    tokens: Vec<u32>,
    values: Vec<f32>,
}

/// One run of the job.
fn one(loaded: &LoadedModel, request: &Request, job: Job) -> Result<Made> {
    let (inputs, plan) = prepared(loaded, request, job);
    if let Some(steps) = job.steps() {
        let options = GenerateOptions { max_new: steps + 1, ..GenerateOptions::default() };
        let generation =
            loaded.model.generate(&inputs, &plan, &options, &mut |_, _| Control::Go).map_err(Error::from)?;
        // The first new token comes from the prompt; each step after it is one decode.
        let seconds = generation.decode.as_secs_f64() / steps as f64;
        return Ok(Made { seconds, tokens: generation.rows[0].tokens.clone(), values: last_of(&generation.captures) });
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
        // What the job made is what it saved, or its last capture: the edited row's logits, the pattern, the last layer's stream.
        values = run.saved.last().map_or_else(|| last_of(&run.captures), |saved| saved.array.values().to_vec());
    }
    values.truncate(COMPARED);
    Ok(Made { seconds, tokens: Vec::new(), values })
}

/// The numbers of the last capture that are compared.
fn last_of(captures: &[Capture]) -> Vec<f32> {
    let all = captures.last().map_or(&[][..], |capture| capture.array.values());
    all[..all.len().min(COMPARED)].to_vec()
}

/// The rows and the plan of a job.
fn prepared(loaded: &LoadedModel, request: &Request, job: Job) -> (Vec<Vec<u32>>, Plan) {
    let architecture = loaded.model.program().architecture();
    let (depth, width) = (architecture.layers.len(), architecture.width);
    let middle = depth / 2;
    let last = |tap: Tap| tap.positions(Positions::Last);
    let logits = || last(Tap::new("logits", Action::Capture(None)));
    let nowhere = || Tap::new(format!("layers.{middle}.resid_post"), Action::Zero).positions(Positions::List(vec![]));
    // The same numbers for every worker: no engine's random generator is another's.
    let direction: Vec<f32> = (0..width).map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * 0.5).collect();
    let steer = Action::Add { operand: Operand::Vector(direction), scale: 1.0 };
    let one = vec![request.tokens.clone()];
    match job {
        Job::Prefill => (one, Plan::default().with(logits())),
        Job::Forward => (one, Plan::capture(["logits"])),
        Job::Decode { rows, .. } => (rows_of(&request.tokens, rows), Plan::default()),
        Job::Capture => {
            (one, Plan::default().with(logits()).with(Tap::new("layers.*.resid_post", Action::Capture(None))))
        }
        Job::CaptureLayers { layers } => {
            let captured =
                (0..layers.min(depth)).map(|l| Tap::new(format!("layers.{l}.resid_post"), Action::Capture(None)));
            (one, captured.fold(Plan::default().with(logits()), Plan::with))
        }
        Job::Armed => (one, Plan::default().with(nowhere()).with(logits())),
        Job::ArmedDecode { .. } => (one, Plan::default().with(nowhere())),
        Job::Steer => {
            (one, Plan::default().with(Tap::new(format!("layers.{middle}.resid_post"), steer)).with(logits()))
        }
        Job::SteerDecode { .. } => (one, Plan::default().with(Tap::new(format!("layers.{middle}.resid_post"), steer))),
        Job::CaptureDecode { .. } => (one, Plan::capture(["layers.*.resid_post"])),
        Job::Ablate => {
            (one, Plan::default().with(Tap::new(format!("layers.{middle}.mlp_act"), Action::Zero)).with(logits()))
        }
        Job::Pattern => (one, Plan::capture([format!("layers.{middle}.attn_probs")])),
        Job::Lens => (one, Plan::default().with(last(Tap::new("layers.*.resid_post", Action::Capture(None))))),
        Job::Patch => {
            let site = format!("layers.{middle}.resid_post");
            let backwards: Vec<u32> = request.tokens.iter().rev().copied().collect();
            let from = FromSite { rows: Some(vec![0]), ..FromSite::default() };
            let patch = last(Tap::new(site, Action::Set(Operand::From(from)))).rows(vec![1]);
            (vec![request.tokens.clone(), backwards], Plan::default().with(patch).with(logits()))
        }
        Job::Attribute => {
            let backwards: Vec<u32> = request.tokens.iter().rev().copied().collect();
            let token = backwards.first().copied().unwrap_or_default();
            let plan = attribution(&format!("layers.{middle}.resid_post"), token);
            (vec![request.tokens.clone(), backwards], plan)
        }
    }
}

/// Rows of one length that differ: each begins one token later in the prompt, and goes on from its start.
fn rows_of(tokens: &[u32], rows: usize) -> Vec<Vec<u32>> {
    let row = |row: usize| tokens.iter().cycle().skip(row % tokens.len().max(1)).take(tokens.len()).copied().collect();
    (0..rows).map(row).collect()
}

/// What putting row 0's stream in place of row 1's would do to a logit of row 1, position by position, to first order.
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

/// The job's numbers without its edit.
fn control(loaded: &LoadedModel, request: &Request, job: Job) -> Result<Vec<f32>> {
    let plain = match job {
        Job::SteerDecode { .. } => return Ok(Vec::new()),
        Job::Patch => Request { tokens: request.tokens.iter().rev().copied().collect(), ..request.clone() },
        _ => request.clone(),
    };
    Ok(one(loaded, &plain, Job::Prefill)?.values)
}

pub(crate) fn top(loaded: &LoadedModel, tokens: &[u32]) -> Result<Vec<(u32, f32)>> {
    let plan = Plan::default().with(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    let run = loaded.model.run(&[tokens.to_vec()], &plan, &RunOptions::default()).map_err(Error::from)?;
    let logits = run.captures[0].array.values();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    Ok(order.iter().take(5).map(|&id| (id as u32, logits[id])).collect())
}
