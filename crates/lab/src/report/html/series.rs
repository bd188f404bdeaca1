//! The series: every process in the order of running, against the median of its own kind, so that drift can be seen.

use super::svg::{Axis, curve, escape, gutter, level, mark, style_of, text};
use crate::report::format::{change, sides};
use crate::result::SessionResult;
use crate::stats::{median, quantile};
use crate::suite::Metric;
use std::collections::BTreeMap;

const HEIGHT: f64 = 220.0;
/// Processes that the running median looks at.
const WINDOW: usize = 9;

/// All variants of a session, in the order of the suite; what only the runs know comes last.
pub(super) fn variants(result: &SessionResult) -> Vec<&str> {
    let mut ids: Vec<&str> = result.suite.variants.iter().map(|variant| variant.id.as_str()).collect();
    for run in &result.runs {
        if !ids.contains(&run.variant.as_str()) {
            ids.push(&run.variant);
        }
    }
    ids
}

/// A key to the marks of variants.
pub(super) fn legend(result: &SessionResult) -> String {
    let mut out = String::from("<p class=\"legend\">");
    for (index, id) in variants(result).into_iter().enumerate() {
        let (class, shape) = style_of(index);
        out += &format!(
            "<span><svg width=\"14\" height=\"14\" aria-hidden=\"true\">{}</svg> {}</span> ",
            mark(&class, &shape, 50.0, 7.0),
            escape(id)
        );
    }
    out + "</p>\n"
}

/// The plot, where two processes or more have a time.
pub(super) fn series(result: &SessionResult) -> Option<String> {
    let mut kinds: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for run in &result.runs {
        if let Some(value) = run.value(Metric::Time) {
            kinds.entry((&run.workload, &run.variant)).or_default().push(value);
        }
    }
    let medians: BTreeMap<_, f64> = kinds.iter().map(|(kind, values)| (*kind, median(values))).collect();
    // Logarithms against the median of the same variant on the same workload, in the order of running.
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
    // A few wild processes must not flatten all others: they are drawn at the edge.
    let reach = (2.5 * quantile(&sizes, 0.9)).clamp(0.01, 10.0).min(sizes.iter().copied().fold(0.01, f64::max) * 1.1);
    let axis = Axis::changes([-reach, reach]);
    let across = |place: usize| 2.0 + 96.0 * place as f64 / (points.len() - 1).max(1) as f64;
    let ids = variants(result);
    let mut marks = String::new();
    for (tick, label) in axis.ticks() {
        let y = axis.down(*tick, HEIGHT);
        marks += &level(if tick.abs() < 1e-12 { "one" } else { "grid" }, 0.0, 100.0, y);
        marks += &gutter(y, label);
    }
    for (place, (point, run)) in points.iter().zip(&result.runs).enumerate() {
        let index = ids.iter().position(|id| *id == run.variant).unwrap_or_default();
        let (class, shape) = style_of(index);
        marks += &match point {
            Some(value) => mark(&format!("dot {class}"), &shape, across(place), axis.down(*value, HEIGHT)),
            // No value: a cross at the foot.
            None => mark("invalid", "s6", across(place), HEIGHT + 9.0),
        };
    }
    marks += &running(&points, &axis, across);
    let height = HEIGHT + 40.0;
    marks += &text(0.0, HEIGHT + 34.0, "start", "first process");
    marks += &text(100.0, HEIGHT + 34.0, "end", &format!("process {}", points.len()));
    let beyond = known.iter().filter(|x| !axis.holds(**x)).count();
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

/// The running median, where there are enough processes for one.
fn running(points: &[Option<f64>], axis: &Axis, across: impl Fn(usize) -> f64) -> String {
    let known: Vec<(usize, f64)> = points.iter().enumerate().filter_map(|(i, x)| Some((i, (*x)?))).collect();
    let middle = |window: &[(usize, f64)]| {
        let values: Vec<f64> = window.iter().map(|(_, x)| *x).collect();
        (across(window[WINDOW / 2].0), axis.down(median(&values), HEIGHT))
    };
    let path: Vec<(f64, f64)> = known.windows(WINDOW).map(middle).collect();
    if path.len() > WINDOW { curve("running", &path, HEIGHT) } else { String::new() }
}

/// What the numbers say about drift.
fn drift(result: &SessionResult) -> String {
    let timed: Vec<_> = result.comparisons.iter().filter(|c| c.metric == Metric::Time).collect();
    let drifts = timed.iter().filter_map(|c| Some((c, c.drift?.mean, c.drift?.is_significant())));
    let found: Vec<_> = drifts.filter(|(_, mean, significant)| *significant && mean.is_finite()).collect();
    let Some((most, by, _)) = found.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) else {
        return "<p>No comparison drifts significantly.</p>\n".into();
    };
    format!(
        "<p>{} of {} comparisons of time drift significantly, {} on {} the most: {} a process. Pairs cancel what both sides share.</p>\n",
        found.len(),
        timed.len(),
        escape(&sides(most)),
        escape(&most.workload),
        change(*by)
    )
}
