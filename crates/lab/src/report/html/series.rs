//! Time series: every process in the order of execution, relative to the median of its variant, to
//! show drift.

use super::svg::{Axis, curve, escape, horizontal_line, left_label, mark, text, variant_style};
use crate::report::format::{change, sides};
use crate::result::SessionResult;
use crate::stats::{median, quantile};
use crate::suite::Metric;
use std::collections::BTreeMap;

const HEIGHT: f64 = 220.0;
/// Window of the moving median, in processes.
const WINDOW: usize = 9;

/// Returns all variants in the order of the suite; variants that only the runs name come last.
pub(super) fn variants(result: &SessionResult) -> Vec<&str> {
    let mut ids: Vec<&str> = result.suite.variants.iter().map(|variant| variant.id.as_str()).collect();
    for run in &result.runs {
        if !ids.contains(&run.variant.as_str()) {
            ids.push(&run.variant);
        }
    }
    ids
}

/// Draws the legend of the variants' marks.
pub(super) fn legend(result: &SessionResult) -> String {
    let mut out = String::from("<p class=\"legend\">");
    for (index, id) in variants(result).into_iter().enumerate() {
        let (class, shape) = variant_style(index);
        out += &format!(
            "<span><svg width=\"14\" height=\"14\" aria-hidden=\"true\">{}</svg> {}</span> ",
            mark(&class, &shape, 50.0, 7.0),
            escape(id)
        );
    }
    out + "</p>\n"
}

/// Draws the plot; `None` with fewer than two timed processes.
pub(super) fn series(result: &SessionResult) -> Option<String> {
    let mut kinds: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for run in &result.runs {
        if let Some(value) = run.value(Metric::Time) {
            kinds.entry((&run.workload, &run.variant)).or_default().push(value);
        }
    }
    let medians: BTreeMap<_, f64> = kinds.iter().map(|(kind, values)| (*kind, median(values))).collect();
    // ln(time / median of the same variant and workload), in the order of execution.
    let points: Vec<Option<f64>> = result
        .runs
        .iter()
        .map(|run| Some((run.value(Metric::Time)? / medians.get(&(run.workload.as_str(), run.variant.as_str()))?).ln()))
        .collect();
    let known: Vec<f64> = points.iter().flatten().copied().collect();
    if known.len() < 2 {
        return None;
    }
    let sizes: Vec<f64> = known.iter().map(|x| x.abs()).collect();
    // The range ignores a few outliers, which are drawn at the edge.
    let reach = (2.5 * quantile(&sizes, 0.9)).clamp(0.01, 10.0).min(sizes.iter().copied().fold(0.01, f64::max) * 1.1);
    let axis = Axis::changes([-reach, reach]);
    let x_percent = |order: usize| 2.0 + 96.0 * order as f64 / (points.len() - 1).max(1) as f64;
    let ids = variants(result);
    let mut marks = String::new();
    for (tick, label) in axis.ticks() {
        let y = axis.to_px(*tick, HEIGHT);
        marks += &horizontal_line(if tick.abs() < 1e-12 { "one" } else { "grid" }, 0.0, 100.0, y);
        marks += &left_label(y, label);
    }
    for (order, (point, run)) in points.iter().zip(&result.runs).enumerate() {
        let index = ids.iter().position(|id| *id == run.variant).unwrap_or_default();
        let (class, shape) = variant_style(index);
        marks += &match point {
            Some(value) => mark(&format!("dot {class}"), &shape, x_percent(order), axis.to_px(*value, HEIGHT)),
            // No value: a cross at the bottom.
            None => mark("invalid", "s6", x_percent(order), HEIGHT + 9.0),
        };
    }
    marks += &moving_median(&points, &axis, x_percent);
    let height = HEIGHT + 40.0;
    marks += &text(0.0, HEIGHT + 34.0, "start", "first process");
    marks += &text(100.0, HEIGHT + 34.0, "end", &format!("process {}", points.len()));
    let beyond = known.iter().filter(|x| !axis.contains(**x)).count();
    let title = format!("{} processes in the order of running, each against the median of its variant", known.len());
    let mut out = format!(
        "{}<svg class=\"plot\" height=\"{height}\" role=\"img\"><title>{title}</title>{marks}</svg>\n",
        legend(result)
    );
    if beyond > 0 {
        out += &format!("<p>{beyond} of {} lie beyond the plot and are drawn at its edge.</p>\n", known.len());
    }
    Some(out + &drift(result))
}

/// Draws the moving median, if there are enough processes.
fn moving_median(points: &[Option<f64>], axis: &Axis, x_percent: impl Fn(usize) -> f64) -> String {
    let known: Vec<(usize, f64)> = points.iter().enumerate().filter_map(|(i, x)| Some((i, (*x)?))).collect();
    let middle = |window: &[(usize, f64)]| {
        let values: Vec<f64> = window.iter().map(|(_, x)| *x).collect();
        (x_percent(window[WINDOW / 2].0), axis.to_px(median(&values), HEIGHT))
    };
    let path: Vec<(f64, f64)> = known.windows(WINDOW).map(middle).collect();
    if path.len() > WINDOW { curve("running", &path, HEIGHT) } else { String::new() }
}

/// Summarizes the significant drifts.
fn drift(result: &SessionResult) -> String {
    let timed: Vec<_> = result.comparisons.iter().filter(|c| c.metric == Metric::Time).collect();
    let drifts = timed.iter().filter_map(|c| Some((c, c.drift?.mean, c.drift?.is_significant())));
    let found: Vec<_> = drifts.filter(|(_, mean, significant)| *significant && mean.is_finite()).collect();
    let Some((most, by, _)) = found.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) else {
        return "<p>No comparison drifts significantly.</p>\n".into();
    };
    format!(
        "<p>{} of {} comparisons of time drift significantly, {} on {} the most: {} per process. Pairing cancels drift that both sides share.</p>\n",
        found.len(),
        timed.len(),
        escape(&sides(most)),
        escape(&most.workload),
        change(*by)
    )
}
