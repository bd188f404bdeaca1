//! Results over time, as text and as a page.

use super::format::{change, date, noise, quantity};
use super::html::{Axis, curve, document, escape, levels, mark, text};
use crate::history::{LEAST, Series, Step};
use crate::report::html::{byte_tick, second_tick};
use crate::stats;
use crate::suite::Metric;

const HEIGHT: f64 = 150.0;
/// Characters of a series drawn as text.
const WIDTH: usize = 60;

/// The series as lines of text, those with steps first told of and then drawn.
pub fn history_text(all: &[Series]) -> String {
    let mut out = String::new();
    for series in all {
        let latest = series.points.last().map_or(f64::NAN, |point| point.value);
        out += &format!("{}\n  {}  {}\n", name(series), sparks(series), quantity(series.metric, latest));
        for step in &series.steps {
            out += &format!("  {}\n", told(series, step));
        }
        if series.steps.is_empty() {
            out += &format!("  {}\n", steady(series));
        }
    }
    let steps: usize = all.iter().map(|series| series.steps.len()).sum();
    out + &format!("\n{} series, {steps} steps\n", all.len())
}

/// The series as one web page.
pub fn history_html(all: &[Series]) -> String {
    let steps: usize = all.iter().map(|series| series.steps.len()).sum();
    let mut body = format!(
        "<header><h1>Results over time</h1><p class=\"verdict {}\">{} series, {steps} steps</p></header>\n<main>\n",
        if steps == 0 { "equivalent" } else { "inconclusive" },
        all.len()
    );
    for series in all {
        body += &format!("<section><figure><h3>{}</h3>\n{}", escape(&name(series)), plot(series));
        let told: Vec<String> = match series.steps.is_empty() {
            true => vec![steady(series)],
            false => series.steps.iter().map(|step| told(series, step)).collect(),
        };
        let points: String = told.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
        body += &format!("<figcaption><ul class=\"why\">{points}</ul></figcaption></figure></section>\n");
    }
    body += "<p class=\"caption\">Each mark is one result, the median over its processes; the line is the level between steps. A step needs \
             three results on either side and is found where absolute distances from medians, plus a price for each cut that grows with the \
             noise, are least.</p>\n</main>\n";
    document("Results over time", &body)
}

fn name(series: &Series) -> String {
    let Series { suite, workload, variant, metric, .. } = series;
    format!("{suite} / {workload} / {variant} / {}", metric.name())
}

fn steady(series: &Series) -> String {
    match series.points.len() {
        n if n < 2 * LEAST => format!("{n} results: a step needs {LEAST} on either side"),
        n => format!("no step in {n} results, noise {}", noise(series.noise)),
    }
}

fn told(series: &Series, step: &Step) -> String {
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

/// A series in a line of characters, a bar before each step.
fn sparks(series: &Series) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let first = series.points.len().saturating_sub(WIDTH);
    let shown = &series.points[first..];
    let values: Vec<f64> = shown.iter().map(|point| point.value).collect();
    // An outlier is cut, so that it does not flatten the others.
    let ends = (stats::quantile(&values, 0.05), stats::quantile(&values, 0.95));
    // A flat series is drawn flat: less than five percent fills only a part of the height.
    let reach = (ends.1 - ends.0).max(ends.1 * 0.05);
    let mut out = String::new();
    for (index, point) in shown.iter().enumerate() {
        if series.steps.iter().any(|step| step.at == first + index) {
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
    let up = Axis::of(values.iter().copied(), label);
    let across = |at: usize| 2.0 + 96.0 * at as f64 / (values.len() - 1).max(1) as f64;
    let mut marks = levels(&up, HEIGHT);
    for (at, point) in series.points.iter().enumerate() {
        let dot = mark("dot v0", "s0", across(at), up.down(point.value, HEIGHT));
        let title = format!("{}, {}: {}", point.name, date(point.began), quantity(series.metric, point.value));
        marks += &format!("<g><title>{}</title>{dot}</g>", escape(&title));
    }
    let steps: Vec<(f64, f64)> = (0..values.len())
        .flat_map(|at| {
            let y = up.down(series.level(at), HEIGHT);
            // A step is upright, half way to the point before it.
            let stepped = series.steps.iter().any(|step| step.at == at);
            let from = if stepped { (across(at) + across(at - 1)) / 2.0 } else { across(at) };
            let before = stepped.then(|| (from, up.down(series.level(at - 1), HEIGHT)));
            before.into_iter().chain([(from, y), (across(at), y)])
        })
        .collect();
    marks += &curve("fit", &steps, HEIGHT);
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
