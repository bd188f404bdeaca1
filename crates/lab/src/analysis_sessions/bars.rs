//! Bars of the published workloads: upper bounds on times, memory and ratios, judged by medians.

use super::measure::{SessionResult, SessionRun};
use super::sets::WORKLOADS;
use serde::{Deserialize, Serialize};

/// Run time of the peer divided by ours, at least.
const SPEEDUPS: [(&str, f64); 4] = [("base", 3.0), ("sae", 3.0), ("attr_grad", 4.0), ("attr_ablation", 15.0)];
/// Our peak memory divided by the peer's, at most.
const MEMORY_RATIO: f64 = 0.4;

/// A bar and its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// The bounded quantity.
    pub name: String,
    /// The bound, with its unit.
    pub bound: String,
    /// The measured value, with its unit.
    pub measured: String,
    /// Whether the bar is met.
    pub met: bool,
}

/// Judges the workloads. Workloads that failed have no bars; without a peer, nor have comparisons
/// with it.
pub fn bars(results: &[SessionResult]) -> Vec<Bar> {
    let find = |name: &str| results.iter().find(|result| result.name == name && !result.runs.is_empty());
    let wall = |result: &SessionResult| result.median(|run| run.wall_s);
    let mut bars = Vec::new();
    let found: Vec<&SessionResult> = WORKLOADS.iter().filter_map(|(name, _)| find(name)).collect();
    if found.len() == WORKLOADS.len() {
        let all: f64 = found.iter().map(|result| wall(result)).sum();
        bars.push(at_most("all four workloads, end to end", 10.0, all, seconds));
    }
    if let (Some(base), Some(ablation)) = (find("base"), find("attr_ablation")) {
        bars.push(at_most("attr_ablation, end to end", 5.0, wall(ablation), seconds));
        bars.push(at_most("attr_ablation / base, end to end", 3.0, wall(ablation) / wall(base), times));
        let run = |result: &SessionResult| result.median(SessionRun::run_s);
        bars.push(at_most("attr_ablation / base, run time", 3.0, run(ablation) / run(base), times));
    }
    if let (Some(base), Some(grad)) = (find("base"), find("attr_grad")) {
        bars.push(at_most("attr_grad / base, peak memory", 1.5, peak(grad) / peak(base), times));
    }
    let ready = found.iter().map(|result| result.median(SessionRun::ready_s)).fold(0.0, f64::max);
    if !found.is_empty() {
        bars.push(at_most("session ready, slowest workload", 1.0, ready, seconds));
    }
    for (name, speedup) in SPEEDUPS {
        let Some(result) = find(name).filter(|result| !result.peer_runs.is_empty()) else { continue };
        let ratio = result.peer_median(|run| run.run_s) / result.median(SessionRun::run_s);
        bars.push(Bar {
            name: format!("{name}, run time of the peer / ours"),
            bound: format!("≥ {}", times(speedup)),
            measured: times(ratio),
            met: ratio >= speedup,
        });
        let memory = peak(result) / result.peer_median(|run| run.peak_bytes as f64);
        bars.push(at_most(&format!("{name}, peak memory / the peer's"), MEMORY_RATIO, memory, times));
    }
    bars
}

fn peak(result: &SessionResult) -> f64 {
    result.median(|run| run.peak("save") as f64)
}

fn at_most(name: &str, bound: f64, measured: f64, format: fn(f64) -> String) -> Bar {
    Bar {
        name: name.into(), bound: format!("≤ {}", format(bound)), measured: format(measured), met: measured <= bound
    }
}

fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

fn times(value: f64) -> String {
    format!("{value:.2}×")
}
