//! The schedule as one self-contained page: inline SVG, no script.

use super::charts::{Chart, Sample, TOTAL_HEIGHT, TimeAxis};
use super::spans::{RequestSpans, Span, assign_lanes, spans};
use super::{Schedule, tokens_of};
use crate::html::escape_text;
use pellucid_engine::PassRecord;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Up to this many requests, each has a row of its own with its waiting time; more share lanes.
const MAX_ROWS: usize = 64;
/// Requests drawn, at most: more cannot be distinguished.
const MAX_REQUESTS: usize = 4000;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 120.0;
const TOP: f64 = 26.0;

/// Renders the schedule as a complete HTML document.
///
/// The page shows the requests over time, prompt chunks in one color and generated tokens in
/// another, and below them tokens of each pass, its duration, running and waiting requests, and
/// reserved memory. With more than 64 requests, requests that follow each other share a lane; a
/// note says so.
pub fn html(schedule: &Schedule) -> String {
    let mut requests = spans(schedule);
    let (count, by_lane) = (requests.len(), requests.len() > MAX_ROWS);
    requests.truncate(MAX_REQUESTS);
    // The end of the last request that is drawn ends the time axis.
    let end = requests.iter().map(RequestSpans::end).fold(0.0, f64::max);
    let start = requests.iter().map(|request| request.submitted).fold(end, f64::min);
    let end = end.max(start + 1e-6);
    let drawn = schedule.passes.partition_point(|pass| pass.start.as_secs_f64() < end);
    let axis = TimeAxis { start, end, left: LEFT, width: WIDTH - LEFT - 10.0 };
    let lanes = assign_lanes(&mut requests);
    let rows = if by_lane { lanes } else { count };
    let row_height = (720.0 / rows.max(1) as f64).clamp(9.0, 20.0);
    let charts_top = TOP + row_height * rows as f64 + 20.0;
    let charts = charts(&schedule.passes[..drawn]);
    let height = charts_top + TOTAL_HEIGHT * charts.len() as f64;

    let mut svg = String::new();
    for (at, label) in axis.ticks() {
        let x = axis.x(at);
        let _ = write!(svg, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{:.0}" y2="{height:.0}"/>"#, TOP - 4.0);
        let _ = write!(svg, r#"<text class="tick" x="{x:.1}" y="{:.0}">{label}</text>"#, TOP - 10.0);
    }
    for (index, request) in requests.iter().enumerate() {
        let row = if by_lane { request.lane } else { index };
        let top = TOP + row_height * row as f64;
        draw_request(schedule, request, &axis, (top, row_height), by_lane, &mut svg);
    }
    if by_lane {
        for lane in (0..lanes).filter(|lane| lanes <= 40 || lane % 4 == 0) {
            let y = TOP + row_height * (lane as f64 + 0.5) + 4.0;
            let _ = write!(svg, r#"<text class="label" x="{:.0}" y="{y:.1}">lane {lane}</text>"#, LEFT - 8.0);
        }
    }
    for (number, chart) in charts.into_iter().enumerate() {
        chart.draw(&axis, charts_top + TOTAL_HEIGHT * number as f64, &mut svg);
    }
    let title = format!("Schedule of {}", escape_text(&schedule.model));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>{}{}\n\
         <svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"requests and passes over time\">{svg}</svg>\n\
         </body></html>\n",
        summary(schedule, count),
        legend(count, by_lane),
    )
}

/// Draws the spans of a request, its waiting time if it has a row of its own, and its label.
fn draw_request(
    schedule: &Schedule,
    request: &RequestSpans,
    axis: &TimeAxis,
    (top, height): (f64, f64),
    by_lane: bool,
    svg: &mut String,
) {
    let info = schedule.requests.get(request.request);
    let label = escape_text(info.map_or("", |info| info.label.as_str()));
    let error = info.and_then(|info| info.error.as_deref()).map(escape_text);
    let about = format!(
        "{label}: {} prompt tokens, {} fed back, {} waiting, {} running{}",
        request.tokens(true),
        request.tokens(false),
        seconds(request.start() - request.submitted),
        seconds(request.end() - request.start()),
        error.as_ref().map_or_else(String::new, |error| format!("\nfailed: {error}")),
    );
    let bar = height - if height > 12.0 { 4.0 } else { 1.5 };
    let mut rect = |class: &str, start: f64, end: f64, title: String| {
        let (x, width) = (axis.x(start), (axis.x(end) - axis.x(start)).max(0.6));
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{x:.1}" y="{top:.1}" width="{width:.1}" height="{bar:.1}"><title>{title}</title></rect>"#
        );
    };
    if !by_lane && request.start() > request.submitted {
        rect("waiting", request.submitted, request.start(), format!("{about}\nwaiting"));
    }
    for Span { is_prompt, start, end, passes, tokens } in request.spans.iter().copied() {
        let (class, what) = if is_prompt { ("prompt", "prompt tokens") } else { ("decode", "generated tokens") };
        let title = format!("{about}\n{tokens} {what} in {passes} {}", if passes == 1 { "pass" } else { "passes" });
        rect(class, start, end, title);
    }
    if error.is_some() {
        rect("failed", request.end(), request.end(), about);
    }
    if by_lane {
        // A gap before the request, which would otherwise run into its predecessor in the lane. It
        // is left of the start, so that a short prompt stays visible.
        let (x, bottom) = (axis.x(request.start()) - 0.7, top + bar);
        let _ = write!(svg, r#"<line class="edge" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
    } else {
        let _ = write!(
            svg,
            r#"<text class="label" x="{:.0}" y="{:.1}">{}</text>"#,
            axis.left - 8.0,
            top + bar / 2.0 + 4.0,
            shorten(&label)
        );
    }
}

/// The last characters of a long label, which usually differ.
fn shorten(label: &str) -> String {
    let count = label.chars().count();
    // An escape such as `&amp;` must not be cut, so labels with one stay whole.
    if count <= 16 || label.contains('&') {
        return label.to_owned();
    }
    format!("…{}", label.chars().skip(count - 15).collect::<String>())
}

/// The charts below the requests.
fn charts(passes: &[PassRecord]) -> Vec<Chart<'static>> {
    let chart = |title, areas, format, values: &dyn Fn(&PassRecord) -> Vec<f64>| {
        let sample = |pass: &PassRecord| {
            let start = pass.start.as_secs_f64();
            Sample { start, end: start + pass.duration.as_secs_f64(), values: values(pass) }
        };
        Chart { title, areas, format, samples: passes.iter().map(sample).collect() }
    };
    let whole: fn(f64) -> String = |value| format!("{value:.0}");
    let mut charts = vec![
        chart("Tokens of a pass", &[("decode", "generated tokens"), ("prompt", "prompt tokens")], whole, &|pass| {
            let (prompt, decode) = tokens_of(pass);
            vec![decode as f64, prompt as f64]
        }),
        chart("Duration of a pass", &[("duration", "duration of the pass")], seconds, &|pass| {
            vec![pass.duration.as_secs_f64()]
        }),
        chart("Requests", &[("running", "requests in the pass"), ("waiting", "waiting requests")], whole, &|pass| {
            vec![pass.requests.len() as f64, pass.waiting as f64]
        }),
        chart("KV caches and recurrent states, reserved", &[("memory", "reserved bytes")], bytes, &|pass| {
            vec![pass.kv_bytes as f64]
        }),
    ];
    if passes.iter().any(|pass| pass.capture_bytes > 0) {
        charts.push(chart("Captures, reserved", &[("memory", "reserved bytes")], bytes, &|pass| {
            vec![pass.capture_bytes as f64]
        }));
    }
    charts
}

/// Totals of the run.
fn summary(schedule: &Schedule, requests: usize) -> String {
    let passes = schedule.passes.len();
    let (prompt, decode) = schedule.passes.iter().map(tokens_of).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let busy: f64 = schedule.passes.iter().map(|pass| pass.duration.as_secs_f64()).sum();
    let mixed = schedule.passes.iter().filter(|pass| {
        let (prompt, decode) = tokens_of(pass);
        prompt > 0 && decode > 0
    });
    let per_pass = |total: usize| total as f64 / passes.max(1) as f64;
    let together: usize = schedule.passes.iter().map(|pass| pass.requests.len()).sum();
    let figures = [
        (requests.to_string(), "requests"),
        (passes.to_string(), "passes"),
        (format!("{prompt}"), "prompt tokens"),
        (format!("{decode}"), "generated tokens fed back"),
        (format!("{:.1}", per_pass(together)), "requests per pass"),
        (format!("{:.1}", per_pass(prompt + decode)), "tokens per pass"),
        (mixed.count().to_string(), "passes with prompt and generated tokens"),
        (seconds(busy), "in passes"),
        (format!("{:.0}", (prompt + decode) as f64 / busy.max(f64::MIN_POSITIVE)), "tokens/s"),
    ];
    let items: String = figures.iter().map(|(value, what)| format!("<li><b>{value}</b> {what}</li>")).collect();
    format!("<ul>{items}</ul>")
}

fn legend(count: usize, by_lane: bool) -> String {
    let mut notes = String::from(
        "<p><i class=\"prompt\"></i>prompt chunks <i class=\"decode\"></i>generated tokens \
         <i class=\"waiting\"></i>waiting <i class=\"failed\"></i>failed. The horizontal axis is time.",
    );
    if by_lane {
        notes += " There are more requests than rows, so requests that follow each other share a lane.";
    }
    if count > MAX_REQUESTS {
        let _ = write!(notes, " Only the first {MAX_REQUESTS} of {count} requests are drawn.");
    }
    notes + "</p>"
}

fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

fn bytes(count: f64) -> String {
    match count {
        x if x >= 1e9 => format!("{:.2} GB", x / 1e9),
        x if x >= 1e6 => format!("{:.1} MB", x / 1e6),
        x => format!("{:.1} kB", x / 1e3),
    }
}
