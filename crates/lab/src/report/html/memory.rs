//! Memory by phase: peaks while loading and running, and what is held at the end.

use super::series::variants;
use super::svg::{Axis, Row, bar, byte_tick, escape, rows};
use super::tables::{head, table};
use crate::protocol::Answer;
use crate::report::format::bytes;
use crate::result::SessionResult;
use crate::stats::median;
use crate::suite::Workload;

const HEIGHT: f64 = 22.0;

/// Medians over the processes of a variant.
struct Held {
    peak: f64,
    /// Load, run, anonymous and file, where the worker tells.
    phases: Option<[f64; 4]>,
}

/// Bars for each workload; none where no answer tells of phases.
pub(super) fn memory(result: &SessionResult) -> Option<String> {
    let tells = |answer: &Answer| answer.memory.is_some();
    if !result.runs.iter().any(|run| run.answer.as_ref().is_some_and(tells)) {
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
    let mut found: Vec<(&str, Held)> = Vec::new();
    for variant in variants(result) {
        let answers = answers(result, &workload.id, variant);
        let peaks: Vec<f64> = answers.iter().map(|answer| answer.peak_bytes as f64).collect();
        if peaks.is_empty() {
            continue;
        }
        let told: Vec<[u64; 4]> =
            answers.iter().filter_map(|a| a.memory).map(|m| [m.load, m.run, m.anonymous, m.file]).collect();
        let of = |part: usize| median(&told.iter().map(|parts| parts[part] as f64).collect::<Vec<_>>());
        let phases = (!told.is_empty()).then(|| [of(0), of(1), of(2), of(3)]);
        found.push((variant, Held { peak: median(&peaks), phases }));
    }
    if found.is_empty() {
        return None;
    }
    let highest = |held: &Held| held.phases.map_or(held.peak, |p| p[0].max(p[1]).max(p[2] + p[3]).max(held.peak));
    let axis = Axis::from_zero(found.iter().map(|(_, held)| highest(held)), byte_tick);
    let all: Vec<Row> = found.iter().flat_map(|(variant, held)| strips(variant, held, &axis)).collect();
    Some(format!("<h3>{}</h3>\n{}", escape(&workload.id), rows(&axis, &all)))
}

fn strips(variant: &str, held: &Held, axis: &Axis) -> Vec<Row> {
    let row = |phase: &str, value: String, marks: String, first: bool| Row {
        label: format!(
            "{}<span>{phase}</span>",
            if first { format!("<b>{}</b> ", escape(variant)) } else { String::new() }
        ),
        title: format!("{variant}, {phase}: {}", value),
        value,
        marks,
        height: HEIGHT as u32,
    };
    let one = |class: &str, value: f64| bar(class, axis.at(0.0), axis.at(value), 4.0, HEIGHT - 8.0);
    let Some([load, run, anonymous, file]) = held.phases else {
        return vec![row("peak, phases not told", bytes(held.peak), one("peak", held.peak), true)];
    };
    let end =
        one("anonymous", anonymous) + &bar("file", axis.at(anonymous), axis.at(anonymous + file), 4.0, HEIGHT - 8.0);
    let both = format!("{} + {}", bytes(anonymous), bytes(file));
    vec![
        row("peak while loading", bytes(load), one("peak", load), true),
        row("peak while running", bytes(run), one("peak", run), false),
        row("held at the end: anonymous + file", both, end, false),
    ]
}

/// Heap allocations of one timed run, where a worker counted them.
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
    let names = head(&["workload", "variant", "#count", "#bytes", "#alive at most"]);
    format!("<h3>Heap allocations of one run</h3>\n{}", table("Heap allocations", &names, &lines))
}
