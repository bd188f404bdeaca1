//! `pellucid profile`: time per op of a run or a generation.

use super::{print, print_json, say};
use crate::args::{ProfileArgs, ProfileBy};
use crate::failure::Failure;
use crate::{files, inputs, models};
use pellucid_engine::profile::{OpTime, work};
use pellucid_engine::{Action, Control, GenerateOptions, Model, Plan, Positions, RunOptions, Tap};
use pellucid_lab::roofline::op_name;
use pellucid_lab::stats;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// A row of the table.
#[derive(Default, Serialize)]
struct Line {
    calls: usize,
    seconds: f64,
    share: f64,
    gflops_per_s: Option<f64>,
    gigabytes_per_s: Option<f64>,
    #[serde(skip)]
    flops: f64,
    #[serde(skip)]
    bytes: f64,
}

pub fn run(args: ProfileArgs) -> Result<(), Failure> {
    inputs::check_captures(&args.plan)?;
    if args.plan.out.is_some() {
        return Err(Failure::usage("`profile` writes no captures, so --out has no effect", "use `run` or `generate`"));
    }
    if args.trace.is_some() && args.trace == args.flame {
        return Err(Failure::usage("--trace and --flame name the same file", "give two names"));
    }
    [&args.trace, &args.flame].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    let file = inputs::plan_file(&args.plan)?;
    let loaded = models::load_with_saes(&args.model, &file.saes())?;
    let prompts = inputs::prompts(loaded, &args.input, None)?;
    let mut plan = inputs::plan(loaded, file, &args.plan, &prompts)?;
    let rows = prompts.rows;
    if args.max_new == 0 && !plan.taps.iter().any(|tap| matches!(tap.action, Action::Capture(_))) {
        plan.taps.push(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    }
    let once = |model: &Model| -> Result<f64, Failure> {
        let started = Instant::now();
        run_once(model, &rows, &plan, args.max_new as usize)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (profiled, profile) = loaded.model.profiled();
    // The first run faults in weights and buffers, so it is not measured.
    once(&profiled)?;
    let timed = || {
        profile.clear();
        once(&profiled)
    };
    let (overhead, profiled_s) = match args.pairs {
        None => (None, timed()?),
        Some(pairs) => {
            once(&loaded.model)?;
            let overhead = Overhead::of(&measure_pairs(pairs as usize, || once(&loaded.model), timed)?);
            let profiled_s = overhead.profiled_s;
            (Some(overhead), profiled_s)
        }
    };
    let times = profile.times();
    let lines = table(&loaded.model, &times, args.by);
    if let Some(path) = &args.trace {
        files::write(path, chrome_trace(&loaded.model, &times).to_string().as_bytes())?;
    }
    if let Some(path) = &args.flame {
        files::write(path, flame_graph(&loaded.model, &times)?.as_bytes())?;
    }
    if args.json {
        return print_json(&json!({
            "seconds": overhead.as_ref().map_or(profiled_s, |overhead| overhead.plain_s),
            "profiled_seconds": profiled_s,
            "overhead": overhead.as_ref().map(|overhead| overhead.share),
            "overhead_interval": overhead.as_ref().map(|overhead| [overhead.low, overhead.high]),
            "pairs": overhead.as_ref().map_or(0, |overhead| overhead.pairs),
            "lines": lines,
        }));
    }
    print(&text(&lines))?;
    say(&match overhead {
        Some(overhead) => overhead.text(),
        None => format!(
            "{:.2} ms in one profiled run; use --pairs 6 to measure the overhead of profiling",
            profiled_s * 1e3
        ),
    });
    Ok(())
}

/// Times runs without and with profiling in pairs; the order alternates.
fn measure_pairs(
    pairs: usize,
    plain: impl Fn() -> Result<f64, Failure>,
    profiled: impl Fn() -> Result<f64, Failure>,
) -> Result<Vec<(f64, f64)>, Failure> {
    let pair = |index: usize| {
        let before = if index.is_multiple_of(2) { Some(plain()?) } else { None };
        let with = profiled()?;
        Ok((before.map_or_else(&plain, Ok)?, with))
    };
    (0..pairs).map(pair).collect()
}

/// Relative overhead of profiling, from pairs of runs without and with it.
struct Overhead {
    pairs: usize,
    plain_s: f64,
    profiled_s: f64,
    share: f64,
    low: f64,
    high: f64,
}

impl Overhead {
    fn of(pairs: &[(f64, f64)]) -> Overhead {
        let side = |of: fn(&(f64, f64)) -> f64| stats::median(&pairs.iter().map(of).collect::<Vec<_>>());
        let logs: Vec<f64> = pairs.iter().map(|(plain, with)| (with / plain).ln()).collect();
        let found = stats::confidence_interval(&logs, 1);
        let (share, low, high) = (found.mean.exp_m1(), found.low.exp_m1(), found.high.exp_m1());
        let (plain_s, profiled_s) = (side(|pair| pair.0), side(|pair| pair.1));
        Overhead { pairs: pairs.len(), plain_s, profiled_s, share, low, high }
    }

    fn text(&self) -> String {
        let what = match self.low <= 0.0 && self.high >= 0.0 {
            true => "not statistically significant",
            false => "statistically significant",
        };
        format!(
            "{:.2} ms without the profile, {:.2} ms with it: profiling costs {:+.1} % ({:+.1} to {:+.1} % at 95 %, {} pairs), {what}",
            self.plain_s * 1e3,
            self.profiled_s * 1e3,
            self.share * 100.0,
            self.low * 100.0,
            self.high * 100.0,
            self.pairs,
        )
    }
}

fn run_once(model: &Model, rows: &[Vec<u32>], plan: &Plan, max_new: usize) -> Result<(), Failure> {
    if max_new == 0 {
        model.run(rows, plan, &RunOptions::default())?;
    } else {
        let options = GenerateOptions { max_new, ..GenerateOptions::default() };
        model.generate(rows, plan, &options, &mut |_, _| Control::Go)?;
    }
    Ok(())
}

/// Returns the group of an op in the table.
fn group(model: &Model, index: usize, by: ProfileBy) -> String {
    let program = model.program();
    let (op, ends) = (&program.ops()[index], index < program.ops().len() / 2);
    match by {
        ProfileBy::Kind => op.kind.name().into(),
        ProfileBy::Layer => match op.layer {
            Some(layer) => format!("layers.{layer:>3}"),
            None => if ends { "embedding" } else { "head" }.into(),
        },
        ProfileBy::Weight => op_name(program, index),
    }
}

fn table(model: &Model, times: &[OpTime], by: ProfileBy) -> Vec<(String, Line)> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for time in times {
        let line = lines.entry(group(model, time.op, by)).or_default();
        let work = work(model.program(), model.weights(), time.op, time.computed, time.pairs);
        line.calls += 1;
        line.seconds += time.seconds;
        line.flops += work.flops;
        line.bytes += work.weight_bytes;
    }
    let total: f64 = lines.values().map(|line| line.seconds).sum();
    let mut lines: Vec<(String, Line)> = lines.into_iter().collect();
    for (_, line) in &mut lines {
        line.share = line.seconds / total.max(f64::MIN_POSITIVE);
        let rate = |amount: f64| (amount > 0.0 && line.seconds > 0.0).then(|| amount / line.seconds / 1e9);
        (line.gflops_per_s, line.gigabytes_per_s) = (rate(line.flops), rate(line.bytes));
    }
    if by != ProfileBy::Layer {
        lines.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    }
    lines
}

fn text(lines: &[(String, Line)]) -> String {
    let mut text =
        format!("{:<24} {:>7} {:>11} {:>7} {:>10} {:>8}\n", "op", "calls", "time", "share", "GFLOP/s", "GB/s");
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
    for (name, line) in lines {
        text += &format!(
            "{name:<24} {:>7} {:>8.3} ms {:>6.1}% {:>10} {:>8}\n",
            line.calls,
            line.seconds * 1e3,
            line.share * 100.0,
            rate(line.gflops_per_s),
            rate(line.gigabytes_per_s)
        );
    }
    text
}

/// Builds a Chrome/Perfetto trace: one complete event per op.
fn chrome_trace(model: &Model, times: &[OpTime]) -> Value {
    let event = |time: &OpTime| {
        json!({
            "name": group(model, time.op, ProfileBy::Weight),
            "cat": group(model, time.op, ProfileBy::Layer),
            "ph": "X",
            "ts": time.at_s * 1e6,
            "dur": time.seconds * 1e6,
            "pid": 1,
            "tid": 1,
            "args": {"op": time.op, "tokens": time.tokens},
        })
    };
    json!({"traceEvents": times.iter().map(event).collect::<Vec<_>>(), "displayTimeUnit": "ms"})
}

/// Draws a flame graph of phase, layer and op.
fn flame_graph(model: &Model, times: &[OpTime]) -> Result<String, Failure> {
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for time in times {
        let phase = if time.tokens > 1 { "prompt" } else { "step" };
        let (layer, op) = (group(model, time.op, ProfileBy::Layer), group(model, time.op, ProfileBy::Weight));
        *stacks.entry(format!("{phase};{};{op}", layer.replace(' ', ""))).or_default() += (time.seconds * 1e9) as u64;
    }
    let folded: Vec<String> = stacks.iter().map(|(stack, nanoseconds)| format!("{stack} {nanoseconds}")).collect();
    let mut options = inferno::flamegraph::Options::default();
    options.title = "where the time goes".into();
    options.count_name = "ns".into();
    let mut svg = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.iter().map(String::as_str), &mut svg)
        .map_err(|error| Failure::internal(format!("the flame graph: {error}")))?;
    String::from_utf8(svg).map_err(|error| Failure::internal(error.to_string()))
}
