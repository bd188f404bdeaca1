//! Results over time and their change points, as text and as a page.

use super::format::{change, date, noise, quantity};
use super::html::{Axis, curve, document, escape, mark, text, y_grid};
use crate::history::{ChangePoint, MIN_SEGMENT, Series};
use crate::report::html::{byte_tick, second_tick};
use crate::stats;
use crate::suite::Metric;

const HEIGHT: f64 = 150.0;
/// Maximum length of a sparkline, in characters.
const WIDTH: usize = 60;

/// Formats every series as a sparkline with its change points.
pub fn history_text(all: &[Series]) -> String {
    let mut out = String::new();
    for series in all {
        let latest = series.points.last().map_or(f64::NAN, |point| point.value);
        out += &format!("{}\n  {}  {}\n", name(series), sparkline(series), quantity(series.metric, latest));
        for step in &series.change_points {
            out += &format!("  {}\n", describe(series, step));
        }
        if series.change_points.is_empty() {
            out += &format!("  {}\n", describe_steady(series));
        }
    }
    let steps: usize = all.iter().map(|series| series.change_points.len()).sum();
    out + &format!("\n{} series, {steps} change points\n", all.len())
}

/// Formats the series as one web page.
pub fn history_html(all: &[Series]) -> String {
    let steps: usize = all.iter().map(|series| series.change_points.len()).sum();
    let mut body = format!(
        "<header><h1>Results over time</h1><p class=\"verdict {}\">{} series, {steps} change points</p></header>\n<main>\n",
        if steps == 0 { "equivalent" } else { "inconclusive" },
        all.len()
    );
    for series in all {
        body += &format!("<section><figure><h3>{}</h3>\n{}", escape(&name(series)), plot(series));
        let lines: Vec<String> = match series.change_points.is_empty() {
            true => vec![describe_steady(series)],
            false => series.change_points.iter().map(|step| describe(series, step)).collect(),
        };
        let points: String = lines.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
        body += &format!("<figcaption><ul class=\"why\">{points}</ul></figcaption></figure></section>\n");
    }
    body += "<p class=\"caption\">Each mark is one result, the median over its processes; the line is the median of each segment. Change points minimize \
             the absolute deviations from the segments' medians plus a penalty that grows with the noise; a segment has at least three \
             results.</p>\n</main>\n";
    document("Results over time", &body)
}

fn name(series: &Series) -> String {
    let Series { suite, workload, variant, metric, .. } = series;
    format!("{suite} / {workload} / {variant} / {}", metric.name())
}

fn describe_steady(series: &Series) -> String {
    match series.points.len() {
        n if n < 2 * MIN_SEGMENT => format!("{n} results: a change point needs {MIN_SEGMENT} on either side"),
        n => format!("no change point in {n} results, noise {}", noise(series.noise)),
    }
}

fn describe(series: &Series, step: &ChangePoint) -> String {
    let point = &series.points[step.at];
    format!(
        "{} since {} ({}): {} → {}, noise {}",
        change(step.log_ratio()),
        point.name,
        date(point.began),
        quantity(series.metric, step.before),
        quantity(series.metric, step.after),
        noise(series.noise)
    )
}

/// Draws a series as a line of block characters, with a bar before each change point.
fn sparkline(series: &Series) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let first = series.points.len().saturating_sub(WIDTH);
    let shown = &series.points[first..];
    let values: Vec<f64> = shown.iter().map(|point| point.value).collect();
    // Clipped at the 5th and 95th percentile, so that an outlier does not flatten the rest.
    let ends = (stats::quantile(&values, 0.05), stats::quantile(&values, 0.95));
    // At least 5 % of the value spans the height, so that a flat series is drawn flat.
    let reach = (ends.1 - ends.0).max(ends.1 * 0.05);
    let mut out = String::new();
    for (index, point) in shown.iter().enumerate() {
        if series.change_points.iter().any(|step| step.at == first + index) {
            out.push('│');
        }
        let share = ((point.value - ends.0) / reach).clamp(0.0, 1.0);
        out.push(HEIGHTS[(share * 7.99) as usize]);
    }
    out
}

fn plot(series: &Series) -> String {
    let label = if series.metric == Metric::Peak { byte_tick } else { second_tick };
    let values: Vec<f64> = series.points.iter().map(|point| point.value).collect();
    let y_axis = Axis::of(values.iter().copied(), label);
    let x_percent = |at: usize| 2.0 + 96.0 * at as f64 / (values.len() - 1).max(1) as f64;
    let mut marks = y_grid(&y_axis, HEIGHT);
    for (at, point) in series.points.iter().enumerate() {
        let dot = mark("dot v0", "s0", x_percent(at), y_axis.to_px(point.value, HEIGHT));
        let title = format!("{}, {}: {}", point.name, date(point.began), quantity(series.metric, point.value));
        marks += &format!("<g><title>{}</title>{dot}</g>", escape(&title));
    }
    let line: Vec<(f64, f64)> = (0..values.len())
        .flat_map(|at| {
            let y = y_axis.to_px(series.level(at), HEIGHT);
            // A change point is a vertical line halfway to the previous point.
            let stepped = series.change_points.iter().any(|step| step.at == at);
            let from = if stepped { (x_percent(at) + x_percent(at - 1)) / 2.0 } else { x_percent(at) };
            let before = stepped.then(|| (from, y_axis.to_px(series.level(at - 1), HEIGHT)));
            before.into_iter().chain([(from, y), (x_percent(at), y)])
        })
        .collect();
    marks += &curve("fit", &line, HEIGHT);
    let dates = series.points.first().zip(series.points.last());
    if let Some((first, last)) = dates {
        let day = |began: u64| date(began).split(' ').next().unwrap_or_default().to_string();
        marks += &text(0.0, HEIGHT + 22.0, "start", &day(first.began));
        marks += &text(100.0, HEIGHT + 22.0, "end", &day(last.began));
    }
    format!(
        "<svg class=\"plot\" height=\"{}\" role=\"img\"><title>{}</title>{marks}</svg>\n",
        HEIGHT + 28.0,
        escape(&format!("{} results of {}", values.len(), name(series)))
    )
}
