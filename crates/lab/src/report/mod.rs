//! A session for people: as text here, as Markdown, as a web page, and in the format of bencher.

mod bencher;
mod html;
mod markdown;

pub use bencher::bencher;
pub use html::html;
pub use markdown::markdown;

use crate::check::State;
use crate::result::{Comparison, Counted, SessionResult};
use crate::suite::Metric;

/// A comparison's line in a table: what, how much, how sure.
pub fn line(comparison: &Comparison) -> String {
    let ratio = comparison.log_ratio.exp();
    let needed = comparison.pairs_needed.map_or_else(String::new, |pairs| format!(", {pairs} pairs needed"));
    format!(
        "{:<22} {:<38} {:<5} {:>11} {:>6.3} ({:.3} to {:.3})  {}{needed}",
        comparison.workload,
        format!("{} / {}", comparison.variant, comparison.reference),
        comparison.metric.name(),
        quantity(comparison.metric, comparison.value),
        ratio.mean,
        ratio.low,
        ratio.high,
        comparison.verdict,
    )
}

/// A value with its unit.
pub fn quantity(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Time | Metric::Load if value < 1.0 => format!("{:.2} ms", value * 1e3),
        Metric::Time | Metric::Load => format!("{value:.2} s"),
        Metric::Peak => format!("{:.0} MB", value / 1e6),
    }
}

/// What one run allocated, on a line.
pub fn allocated(counted: &Counted) -> String {
    let found = &counted.allocations;
    format!(
        "allocations of {} on {}: {}, {:.2} MB, at most {:.2} MB alive",
        counted.variant,
        counted.workload,
        found.count,
        found.bytes as f64 / 1e6,
        found.peak_live as f64 / 1e6
    )
}

/// The whole session as plain text.
pub fn text(result: &SessionResult) -> String {
    let mut out = format!("{}: {}\n\n", result.suite.name, result.suite.title);
    out += &format!(
        "{:<22} {:<38} {:<5} {:>11} {:>6}\n",
        "workload", "variant / compared with", "what", "value", "ratio (95 %)"
    );
    for comparison in &result.comparisons {
        out += &line(comparison);
        out.push('\n');
    }
    let wrong: Vec<_> = result.cells.iter().filter(|cell| cell.state >= State::Error).collect();
    for cell in wrong {
        out += &format!("{:?}: {} on {}: {}\n", cell.state, cell.variant, cell.workload, cell.why);
    }
    for model in &result.models {
        out += &format!(
            "cost on {}: {:.2} ms + {:.1} µs a captured layer ({:.1} to {:.1}), R² {:.3}\n",
            model.workload,
            model.base.mean * 1e3,
            model.per_layer.mean * 1e6,
            model.per_layer.low * 1e6,
            model.per_layer.high * 1e6,
            model.r2
        );
    }
    for counted in &result.allocations {
        out += &format!("{}\n", allocated(counted));
    }
    out += &closure(result);
    for limit in &result.broken_limits {
        out += &format!("broken: {limit}\n");
    }
    if !result.session.ended_early.is_empty() {
        out += &format!("ended early: {}\n", result.session.ended_early);
    }
    out + &format!(
        "\n{} processes in {:.0} s, seed {}: {}\n",
        result.runs.len(),
        result.session.seconds,
        result.session.seed,
        result.verdict()
    )
}

/// Whether a ladder's steps add up to its whole, within their intervals.
pub fn closure(result: &SessionResult) -> String {
    let rungs = &result.suite.ladder;
    let (Some(first), Some(last)) = (rungs.first(), rungs.last()) else { return String::new() };
    let mut text = String::new();
    for workload in &result.suite.workloads {
        let of = |before: &String, after: &String| {
            result.comparisons.iter().find(|c| {
                c.workload == workload.id && c.metric == Metric::Time && c.reference == *before && c.variant == *after
            })
        };
        let steps: Option<Vec<&Comparison>> = rungs.windows(2).map(|step| of(&step[0], &step[1])).collect();
        let (Some(steps), Some(whole)) = (steps, of(first, last)) else { continue };
        let sum: f64 = steps.iter().map(|step| step.log_ratio.mean).sum();
        let wide = steps.iter().chain([&whole]).map(|step| step.log_ratio.half_width().powi(2)).sum::<f64>().sqrt();
        let off = (sum - whole.log_ratio.mean).abs();
        text += &format!(
            "ladder on {}: the steps make {:+.2} %, the whole is {:+.2} %: they {} within ±{:.2} %\n",
            workload.id,
            (sum.exp() - 1.0) * 100.0,
            (whole.log_ratio.mean.exp() - 1.0) * 100.0,
            if off <= wide { "agree" } else { "do not agree" },
            wide * 100.0
        );
    }
    text
}
