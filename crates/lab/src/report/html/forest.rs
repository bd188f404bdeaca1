//! The forest: every ratio with its interval, over the margin and the noise that it has to clear.

use super::svg::{Axis, Row, bar, escape, level, mark, rows, upright};
use crate::report::format::{ends, noise, ratio, share, sides, times};
use crate::result::{Comparison, SessionResult};
use crate::verdict::Verdict;

const HEIGHT: f64 = 30.0;

/// Class, shape and sign of a verdict.
pub(super) fn sign(verdict: Verdict) -> (&'static str, &'static str, &'static str) {
    match verdict {
        Verdict::Improved => ("improved", "s4", "▼"),
        Verdict::Equivalent => ("equivalent", "s0", "●"),
        Verdict::Inconclusive => ("inconclusive", "ring", "○"),
        Verdict::Regressed => ("regressed", "s2", "▲"),
        Verdict::Invalid => ("invalid", "s6", "✕"),
    }
}

/// The plot, where anything was compared.
pub(super) fn forest(result: &SessionResult) -> Option<String> {
    if result.comparisons.is_empty() {
        return None;
    }
    let axis = Axis::ratios(reach(&result.comparisons));
    let all: Vec<Row> = result.comparisons.iter().map(|comparison| row(comparison, &axis)).collect();
    Some(rows(&axis, &all))
}

/// How far the axis goes: all means and bands, and intervals as far as they do not dwarf them.
fn reach(comparisons: &[Comparison]) -> f64 {
    let most =
        |values: &mut dyn Iterator<Item = f64>| values.filter(|x| x.is_finite()).map(f64::abs).fold(0.0, f64::max);
    let middle = most(&mut comparisons.iter().flat_map(|c| [c.log_ratio.mean, (1.0 + c.margin).ln(), c.noise]));
    let wide = most(&mut comparisons.iter().flat_map(|c| [c.log_ratio.low, c.log_ratio.high]));
    middle.max(wide.min(4.0 * middle)) * 1.08
}

fn row(c: &Comparison, axis: &Axis) -> Row {
    let (class, shape, _) = sign(c.verdict);
    let itself = c.variant == c.reference;
    // The reference against itself is a check, not a result: it is drawn without a verdict's colour.
    let (class, shape) = if itself && c.verdict != Verdict::Invalid { ("quiet", "s0") } else { (class, shape) };
    let margin = (1.0 + c.margin).ln();
    let middle = HEIGHT / 2.0;
    let mut marks = bar("margin", axis.at(-margin), axis.at(margin), 0.0, HEIGHT);
    if c.noise > 0.0 {
        marks += &bar("noise", axis.at(-c.noise), axis.at(c.noise), 5.0, HEIGHT - 10.0);
    }
    marks += &upright("one", axis.at(0.0), 0.0, HEIGHT);
    marks += &level(&format!("interval {class}"), axis.at(c.log_ratio.low), axis.at(c.log_ratio.high), middle);
    for end in [c.log_ratio.low, c.log_ratio.high] {
        // An end without a cap goes on beyond the plot.
        if axis.holds(end) {
            marks += &upright(&format!("interval {class}"), axis.at(end), middle - 4.0, middle + 4.0);
        }
    }
    if c.log_ratio.mean.is_finite() {
        marks += &mark(class, shape, axis.at(c.log_ratio.mean), middle);
    }
    let metric = c.metric.name();
    Row {
        label: format!("<b>{}</b> <span>{} · {metric}</span>", escape(&c.workload), escape(&sides(c))),
        value: format!("{} <small>{}</small>", times(c.log_ratio.mean.exp()), ends(&c.log_ratio)),
        title: format!(
            "{}, {}, {metric}: {}, {}; margin {}, noise {}, {} pairs",
            c.workload,
            sides(c),
            ratio(&c.log_ratio),
            c.verdict,
            share(c.margin),
            noise(c.noise),
            c.pairs
        ),
        marks,
        height: HEIGHT as u32,
    }
}
