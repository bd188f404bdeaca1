//! A session as one self-contained web page: no scripts, no external resources.
//!
//! Plots are SVG drawn here. The raw result is embedded as JSON, so that the page alone is enough
//! to check it.

mod cost;
mod forest;
mod headline;
mod ladder;
mod memory;
mod roofline;
mod series;
mod spread;
pub(crate) mod svg;
mod tables;

use crate::result::SessionResult;
use pellucid_analysis::html::escape_json;
pub(super) use svg::{Axis, byte_tick, curve, escape, mark, second_tick, text, y_grid};

const STYLE: &str = include_str!("style.css");

/// A section of the page.
struct Section {
    id: &'static str,
    title: &'static str,
    /// How to read it.
    caption: &'static str,
    /// Whether it is a plot, marked up as a figure.
    is_plot: bool,
    body: String,
}

/// Formats the session as a complete HTML document.
///
/// Sections without data are left out, except comparisons and correctness, which say that they are
/// empty.
pub fn html(result: &SessionResult) -> String {
    let sections = sections(result);
    let mut out = headline::headline(result);
    out += "<nav aria-label=\"Sections\">";
    for section in &sections {
        out += &format!("<a href=\"#{}\">{}</a> ", section.id, section.title);
    }
    out += "</nav>\n<main>\n";
    for Section { id, title, caption, is_plot, body } in &sections {
        let caption = caption.replace(" %", "\u{a0}%");
        let (open, close) = if *is_plot {
            ("<figure>", format!("<figcaption>{caption}</figcaption></figure>"))
        } else {
            ("", format!("<p class=\"caption\">{caption}</p>"))
        };
        out += &format!(
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{open}{body}{close}\n</section>\n"
        );
    }
    out += "</main>\n<script type=\"application/json\" id=\"data\">";
    // Plain structs with string keys always serialize.
    out += &escape_json(&serde_json::to_string(result).unwrap_or_default());
    out += "</script>\n";
    document(&format!("{} · {}", result.suite.name, result.conclusion().name()), &out)
}

/// Wraps a body into a complete document.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}{body}</body>\n</html>\n",
        escape(title),
        svg::SHAPES
    )
}

fn sections(result: &SessionResult) -> Vec<Section> {
    let nothing = "<p>Nothing was compared: no pair has two correct answers.</p>\n";
    let mut all = Vec::new();
    let mut add = |id, title, caption, is_plot, body: Option<String>| {
        if let Some(body) = body {
            all.push(Section { id, title, caption, is_plot, body });
        }
    };
    add(
        "comparisons",
        "Comparisons",
        "A ratio below ×1 means that the variant needs less. The noise floor is the half-width of the A/A control's interval (the reference against itself); \
         differences within the equivalence margin count as equal.",
        false,
        Some(tables::comparisons(result).unwrap_or_else(|| nothing.into())),
    );
    add(
        "forest",
        "Ratios",
        "Marks are ratios (left of ×1 is less, right is more), lines their 95 % confidence intervals, without a cap where they extend beyond the plot; \
         an interval completely outside the shaded margin and the dashed noise floor is a difference (▼ improved, ▲ regressed), one inside \
         the margin is equivalent (●), any other is inconclusive (○). If ratios differ widely, the \
         axis is logarithmic beyond a few percent.",
        true,
        forest::forest(result),
    );
    add(
        "spread",
        "Distributions",
        "Each mark is one fresh process, the vertical line is their median. Groups that do not overlap clearly differ, \
         and a second cluster within a group is a second mode. If \
         values differ widely, the axis is logarithmic.",
        true,
        spread::spread(result),
    );
    add(
        "series",
        "Order of running",
        "Each mark is one process relative to the median of its variant on its workload. A thick line (the moving median) that leaves \
         zero is drift of the machine, not a difference between variants. Crosses at the bottom are processes without a value.",
        true,
        series::series(result),
    );
    add(
        "ladder",
        "Overhead, step by step",
        "Each bar starts where the one above it ends; its length is the cost of its step, with the 95 % confidence interval. The last bar is \
         the last rung against the first, measured directly; the dashed line is the sum of the steps.",
        true,
        ladder::ladder(result),
    );
    add(
        "cost",
        "Cost of captured layers",
        "Each mark is one process, the line is the linear fit, the thin lines are the bounds of the slope's 95 % confidence interval. The slope is \
         the cost of one more captured layer (marks have horizontal jitter).",
        true,
        cost::cost(result),
    );
    add(
        "roofline",
        "Roofline",
        "Each mark is one kind of matmul: its operations per byte of weights, and its rate. The line is the limit of \
         this machine, by memory bandwidth on the slope and by peak FLOP/s on the flat part, both measured in the same process. A mark near the line \
         can become faster only with fewer bytes or operations.",
        true,
        roofline::roofline(result),
    );
    add(
        "memory",
        "Memory by phase",
        "Bars are medians over processes. Anonymous memory (solid) belongs to the process; file memory (striped) is mapped, and the kernel can \
         reclaim it at any time.",
        true,
        memory::memory(result),
    );
    add(
        "correctness",
        "Correctness",
        "A cell shows whether a variant's output on a workload agrees with the oracle's. Wrong cells have no time; reasons are \
         listed under the table.",
        false,
        Some(tables::matrix(result).unwrap_or_else(|| "<p>Nothing was run.</p>\n".into())),
    );
    add(
        "participants",
        "Variants and workloads",
        "The measured variants and their jobs.",
        false,
        Some(tables::participants(result)),
    );
    add(
        "session",
        "Command and session",
        "The same command and seed reproduce the order of all processes.",
        false,
        Some(tables::session(result)),
    );
    add(
        "environment",
        "Environment",
        "The machine at the start of the session.",
        false,
        Some(tables::environment(result)),
    );
    let raw = format!(
        "<p>This page carries the whole result, with every sample of {} processes, as JSON in its element <code>#data</code> (format \
         <code>{}</code>).</p>\n",
        result.runs.len(),
        escape(&result.schema)
    );
    add(
        "raw",
        "Raw data",
        "Non-finite values, such as the bounds of an interval from one pair, are written as strings.",
        false,
        Some(raw),
    );
    all
}
