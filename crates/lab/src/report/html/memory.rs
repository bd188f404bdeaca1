//! Memory by phase: peaks while loading and running, and memory held at the end.

use super::series::variants;
use super::svg::{Axis, PlotRow, bar, byte_tick, escape, rows};
use super::tables::{head, table};
use crate::protocol::Answer;
use crate::report::format::bytes;
use crate::result::SessionResult;
use crate::stats::median;
use crate::suite::Workload;

const HEIGHT: f64 = 22.0;

/// Memory of a variant, as medians over its processes.
struct MemoryUse {
    peak: f64,
    /// [load peak, run peak, anonymous, file], if the worker reports them.
    phases: Option<[f64; 4]>,
}

/// Draws bars per workload; `None` if no worker reports phases.
pub(super) fn memory(result: &SessionResult) -> Option<String> {
    let has_phases = |answer: &Answer| answer.memory.is_some();
    if !result.runs.iter().any(|run| run.answer.as_ref().is_some_and(has_phases)) {
        return None;
    }
    let of = |workload: &Workload| of_workload(result, workload);
    Some(result.suite.workloads.iter().filter_map(of).collect::<String>() + &allocations(result))
}

fn answers<'r>(result: &'r SessionResult, workload: &str, variant: &str) -> Vec<&'r Answer> {
    let runs = result.runs.iter().filter(|run| run.workload == workload && run.variant == variant);
    runs.filter_map(|run| run.answer.as_ref()).collect()
}

fn of_workload(result: &SessionResult, workload: &Workload) -> Option<String> {
    let mut found: Vec<(&str, MemoryUse)> = Vec::new();
    for variant in variants(result) {
        let answers = answers(result, &workload.id, variant);
        let peaks: Vec<f64> = answers.iter().map(|answer| answer.peak_bytes as f64).collect();
        if peaks.is_empty() {
            continue;
        }
        let phases: Vec<[u64; 4]> =
            answers.iter().filter_map(|a| a.memory).map(|m| [m.load, m.run, m.anonymous, m.file]).collect();
        let of = |part: usize| median(&phases.iter().map(|parts| parts[part] as f64).collect::<Vec<_>>());
        let phases = (!phases.is_empty()).then(|| [of(0), of(1), of(2), of(3)]);
        found.push((variant, MemoryUse { peak: median(&peaks), phases }));
    }
    if found.is_empty() {
        return None;
    }
    let highest = |memory_use: &MemoryUse| {
        memory_use.phases.map_or(memory_use.peak, |p| p[0].max(p[1]).max(p[2] + p[3]).max(memory_use.peak))
    };
    let axis = Axis::from_zero(found.iter().map(|(_, memory_use)| highest(memory_use)), byte_tick);
    let all: Vec<PlotRow> =
        found.iter().flat_map(|(variant, memory_use)| memory_rows(variant, memory_use, &axis)).collect();
    Some(format!("<h3>{}</h3>\n{}", escape(&workload.id), rows(&axis, &all)))
}

fn memory_rows(variant: &str, memory_use: &MemoryUse, axis: &Axis) -> Vec<PlotRow> {
    let row = |phase: &str, value: String, marks: String, first: bool| PlotRow {
        label: format!(
            "{}<span>{phase}</span>",
            if first { format!("<b>{}</b> ", escape(variant)) } else { String::new() }
        ),
        title: format!("{variant}, {phase}: {}", value),
        value,
        marks,
        height: HEIGHT as u32,
    };
    let single_bar =
        |class: &str, value: f64| bar(class, axis.to_percent(0.0), axis.to_percent(value), 4.0, HEIGHT - 8.0);
    let Some([load, run, anonymous, file]) = memory_use.phases else {
        return vec![row(
            "peak, phases not reported",
            bytes(memory_use.peak),
            single_bar("peak", memory_use.peak),
            true,
        )];
    };
    let end = single_bar("anonymous", anonymous)
        + &bar("file", axis.to_percent(anonymous), axis.to_percent(anonymous + file), 4.0, HEIGHT - 8.0);
    let both = format!("{} + {}", bytes(anonymous), bytes(file));
    vec![
        row("peak while loading", bytes(load), single_bar("peak", load), true),
        row("peak while running", bytes(run), single_bar("peak", run), false),
        row("held at the end: anonymous + file", both, end, false),
    ]
}

/// Heap allocations of one run, if they were counted.
fn allocations(result: &SessionResult) -> String {
    let mut lines = String::new();
    for counted in &result.allocations {
        lines += &format!(
            "<tr><td class=\"name\">{}</td><td class=\"name\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
            escape(&counted.workload),
            escape(&counted.variant),
            counted.allocations.count,
            bytes(counted.allocations.bytes as f64),
            bytes(counted.allocations.peak_live as f64)
        );
    }
    if lines.is_empty() {
        return lines;
    }
    let names = head(&["workload", "variant", "#count", "#bytes", "#peak live"]);
    format!("<h3>Heap allocations of one run</h3>\n{}", table("Heap allocations", &names, &lines))
}
