//! Waterfall plot of a ladder: the cost of each step, and whether the steps add up.

use super::svg::{Axis, PlotRow, bar, capitalize, escape, horizontal_line, rows, vertical_line};
use crate::report::format::{change, quantity};
use crate::report::ladder::{Ladder, ladders};
use crate::result::SessionResult;
use crate::stats::Estimate;
use crate::suite::Metric;

const HEIGHT: f64 = 28.0;

/// Draws a waterfall per workload; `None` if the suite has no ladder.
pub(super) fn ladder(result: &SessionResult) -> Option<String> {
    if result.suite.ladder.len() < 2 {
        return None;
    }
    let found = ladders(result);
    let mut out: String = found.iter().map(waterfall).collect();
    for workload in &result.suite.workloads {
        if !found.iter().any(|ladder| ladder.workload == workload.id) {
            out += &format!("<p>No ladder on {}: a step has no comparison.</p>\n", escape(&workload.id));
        }
    }
    Some(out)
}

/// Returns the bounds of an interval; an infinite bound is replaced by the mean.
fn finite_ends(estimate: &Estimate) -> (f64, f64) {
    let or = |end: f64| if end.is_finite() { end } else { estimate.mean };
    (or(estimate.low), or(estimate.high))
}

fn waterfall(ladder: &Ladder) -> String {
    // Each bar starts where the previous one ended.
    let mut from = 0.0;
    let mut bars: Vec<(String, f64, &Estimate, &str)> = Vec::new();
    for step in &ladder.steps {
        bars.push((format!("<span>+</span> {}", escape(&step.variant)), from, &step.log_ratio, "step"));
        from += if step.log_ratio.mean.is_finite() { step.log_ratio.mean } else { 0.0 };
    }
    let whole =
        format!("<b>total</b> <span>{} / {}</span>", escape(&ladder.whole.variant), escape(&ladder.whole.reference));
    bars.push((whole, 0.0, &ladder.whole.log_ratio, "whole"));
    let ends = bars.iter().flat_map(|(_, from, estimate, _)| {
        let (low, high) = finite_ends(estimate);
        [0.0, *from, from + low, from + high]
    });
    let axis = Axis::changes(ends);
    let middle = HEIGHT / 2.0;
    let start = vertical_line("one", axis.to_percent(0.0), 0.0, HEIGHT);
    let mut all = Vec::new();
    if let Some(first) = ladder.steps.first() {
        all.push(PlotRow {
            label: escape(&first.reference),
            value: quantity(Metric::Time, first.reference_value),
            title: format!("{}: {}, the first rung", first.reference, quantity(Metric::Time, first.reference_value)),
            marks: start.clone(),
            height: HEIGHT as u32,
        });
    }
    for (label, from, estimate, class) in bars {
        let (low, high) = finite_ends(estimate);
        let mut marks = start.clone()
            + &bar(class, axis.to_percent(from), axis.to_percent(from + estimate.mean), 6.0, HEIGHT - 12.0);
        if low < high {
            marks += &horizontal_line("interval", axis.to_percent(from + low), axis.to_percent(from + high), middle);
            for end in [low, high] {
                marks += &vertical_line("interval", axis.to_percent(from + end), middle - 4.0, middle + 4.0);
            }
        }
        if class == "whole" {
            marks += &vertical_line("sum", axis.to_percent(ladder.sum()), 1.0, HEIGHT - 1.0);
        }
        let value = change(estimate.mean);
        let interval = if estimate.low.is_finite() && estimate.high.is_finite() {
            format!("{} to {}", change(low), change(high))
        } else {
            "no interval".into()
        };
        let name = if class == "whole" { "total" } else { "this step" };
        all.push(PlotRow {
            value: format!("{value} <small>{interval}</small>"),
            title: format!("{name}: {value} ({interval})"),
            label,
            marks,
            height: HEIGHT as u32,
        });
    }
    let summary = escape(&capitalize(&ladder.summary()));
    format!("<h3>{}</h3>\n{}<p class=\"summary\">{summary}.</p>\n", escape(ladder.workload), rows(&axis, &all))
}
