//! `pellucid profile`: where the time of a run or a generation goes.

use super::{print, print_json, say};
use crate::args::{ProfileArgs, ProfileBy};
use crate::failure::Failure;
use crate::{files, inputs, models};
use pellucid_engine::profile::{OpTime, work};
use pellucid_engine::program::OpKind;
use pellucid_engine::{Action, Control, Generate, Model, Plan, Positions, RunOptions, Tap};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Runs with and without the profile, in turn, to say what profiling itself costs.
const ROUNDS: usize = 3;

/// A line of the table.
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
    [&args.trace, &args.flame].into_iter().try_for_each(|path| files::check(path.as_deref()))?;
    let loaded = models::load(&args.model)?;
    let rows = inputs::rows(&loaded, &args.input, None)?;
    let mut plan = inputs::plan(&loaded, &args.plan, &rows)?;
    if args.max_new == 0 && !plan.taps.iter().any(|tap| matches!(tap.action, Action::Capture(_))) {
        plan.taps.push(Tap::new("logits", Action::Capture(None)).positions(Positions::Last));
    }
    let once = |model: &Model| -> Result<f64, Failure> {
        let started = Instant::now();
        go(model, &rows, &plan, args.max_new as usize)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let (profiled, profile) = loaded.model.profiled();
    // The first of each warms up; then they take turns, and the best of each is compared.
    once(&loaded.model)?;
    once(&profiled)?;
    let (mut plain_s, mut profiled_s) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        plain_s = plain_s.min(once(&loaded.model)?);
        profile.clear();
        profiled_s = profiled_s.min(once(&profiled)?);
    }
    let times = profile.times();
    let lines = table(&loaded.model, &times, args.by);
    if let Some(path) = &args.trace {
        files::write(path, chrome_trace(&loaded.model, &times).to_string().as_bytes())?;
    }
    if let Some(path) = &args.flame {
        files::write(path, flame_graph(&loaded.model, &times)?.as_bytes())?;
    }
    let overhead = profiled_s / plain_s - 1.0;
    if args.json {
        return print_json(
            &json!({"seconds": plain_s, "profiled_seconds": profiled_s, "overhead": overhead, "lines": lines}),
        );
    }
    print(&text(&lines))?;
    say(&format!(
        "{:.2} ms without the profile, {:.2} ms with it: profiling costs {:+.1} %",
        plain_s * 1e3,
        profiled_s * 1e3,
        overhead * 100.0
    ));
    Ok(())
}

fn go(model: &Model, rows: &[Vec<u32>], plan: &Plan, max_new: usize) -> Result<(), Failure> {
    if max_new == 0 {
        model.run(rows, plan, &RunOptions::default())?;
    } else {
        let options = Generate { max_new, ..Generate::default() };
        model.generate(rows, plan, &options, &mut |_, _| Control::Go)?;
    }
    Ok(())
}

/// What an op is called in the table.
fn group(model: &Model, op: usize, by: ProfileBy) -> String {
    let program = model.program();
    let (op, ends) = (&program.ops()[op], op < program.ops().len() / 2);
    match by {
        ProfileBy::Kind => op.kind.name().into(),
        ProfileBy::Layer => match op.layer {
            Some(layer) => format!("layers.{layer:>3}"),
            None => if ends { "embedding" } else { "head" }.into(),
        },
        ProfileBy::Weight => match &op.kind {
            OpKind::MatMul { linear, .. } | OpKind::Project { linear, .. } => {
                let name = &program.weights()[linear.weight].name;
                let own = op.layer.and_then(|layer| name.strip_prefix(&format!("layers.{layer}.")));
                own.unwrap_or(name).to_string()
            }
            other => format!("({})", other.name()),
        },
    }
}

fn table(model: &Model, times: &[OpTime], by: ProfileBy) -> Vec<(String, Line)> {
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for time in times {
        let line = lines.entry(group(model, time.op, by)).or_default();
        let work = work(model.program(), model.weights(), time.op, time.tokens);
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

/// The trace format of Chrome and Perfetto: one complete event an op.
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

/// Phase, layer and op as one picture.
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
