//! Forest plot: every ratio with its confidence interval, over the equivalence margin and the noise
//! floor.

use super::svg::{Axis, PlotRow, bar, escape, horizontal_line, mark, rows, vertical_line};
use crate::report::format::{ends, noise, ratio, share, sides, times};
use crate::result::{Comparison, SessionResult};
use crate::suite::Metric;
use crate::verdict::Verdict;

const HEIGHT: f64 = 30.0;

/// Returns the CSS class, shape and symbol of a verdict.
pub(super) fn sign(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Improved => ("improved", "s4", "▼"),
        Verdict::Equivalent => ("equivalent", "s0", "●"),
        Verdict::Inconclusive => ("inconclusive", "ring", "○"),
        Verdict::Regressed => ("regressed", "s2", "▲"),
        Verdict::Invalid => ("invalid", "s6", "✕"),
    }
}

/// Draws the plot; `None` if nothing was compared.
pub(super) fn forest(result: &SessionResult) -> Option<String> {
    if result.comparisons.is_empty() {
        return None;
    }
    let axis = axis(&result.comparisons);
    let mut groups: Vec<(&str, Metric, Vec<PlotRow>)> = Vec::new();
    for c in &result.comparisons {
        let group = groups.iter_mut().find(|(workload, metric, _)| *workload == c.workload && *metric == c.metric);
        match group {
            Some((.., all)) => all.push(row(c, &axis)),
            None => groups.push((&c.workload, c.metric, vec![row(c, &axis)])),
        }
    }
    let plot = |(workload, metric, all): &(&str, Metric, Vec<PlotRow>)| {
        format!("<h3>{}, {}</h3>\n{}", escape(workload), metric.name(), rows(&axis, all))
    };
    Some(groups.iter().map(plot).collect())
}

/// One common axis. It covers all means, margins and noise floors, and wide intervals as far as
/// they do not dwarf these.
fn axis(comparisons: &[Comparison]) -> Axis {
    let finite = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|x| x.is_finite()).fold((0.0f64, 0.0f64), |(low, high), x| (low.min(x), high.max(x)))
    };
    let bands = comparisons.iter().flat_map(|c| [(1.0 + c.margin).ln(), c.noise]).flat_map(|x| [x, -x]);
    let middle = finite(&mut comparisons.iter().map(|c| c.log_ratio.mean).chain(bands));
    let wide = finite(&mut comparisons.iter().flat_map(|c| [c.log_ratio.low, c.log_ratio.high]));
    let most = 4.0 * middle.1.max(-middle.0);
    Axis::ratios(middle.0.min(wide.0.max(-most)) * 1.08, middle.1.max(wide.1.min(most)) * 1.08)
}

fn row(c: &Comparison, axis: &Axis) -> PlotRow {
    let (class, shape, _) = sign(c.verdict);
    let itself = c.variant == c.reference;
    // The A/A control is a check, not a result: it is drawn without a verdict's color.
    let (class, shape) = if itself && c.verdict != Verdict::Invalid { ("quiet", "s0") } else { (class, shape) };
    let margin = (1.0 + c.margin).ln();
    let middle = HEIGHT / 2.0;
    let mut marks = bar("margin", axis.to_percent(-margin), axis.to_percent(margin), 0.0, HEIGHT);
    let own = c.noise;
    if own > 0.0 && own.is_finite() {
        marks += &bar("noise", axis.to_percent(-own), axis.to_percent(own), 5.0, HEIGHT - 10.0);
    }
    marks += &vertical_line("one", axis.to_percent(0.0), 0.0, HEIGHT);
    marks += &horizontal_line(
        &format!("interval {class}"),
        axis.to_percent(c.log_ratio.low),
        axis.to_percent(c.log_ratio.high),
        middle,
    );
    for end in [c.log_ratio.low, c.log_ratio.high] {
        // A bound beyond the plot has no cap.
        if axis.contains(end) {
            marks += &vertical_line(&format!("interval {class}"), axis.to_percent(end), middle - 4.0, middle + 4.0);
        }
    }
    if c.log_ratio.mean.is_finite() {
        marks += &mark(class, shape, axis.to_percent(c.log_ratio.mean), middle);
    }
    let metric = c.metric.name();
    PlotRow {
        label: escape(&sides(c)),
        value: format!("{} <small>{}</small>", times(c.log_ratio.mean.exp()), ends(&c.log_ratio)),
        title: format!(
            "{}, {}, {metric}: {}, {}; margin {}, noise {}, {} pairs",
            c.workload,
            sides(c),
            ratio(&c.log_ratio),
            c.verdict,
            share(c.margin),
            noise(own),
            c.pairs
        ),
        marks,
        height: HEIGHT as u32,
    }
}
