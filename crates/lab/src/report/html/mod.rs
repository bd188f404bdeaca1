//! A session as one web page: everything is in the file, nothing is fetched, nothing needs a script.
//!
//! Plots are drawn here, as SVG; the raw result is carried along as JSON, so that the page alone is enough to check it.

mod cost;
mod forest;
mod headline;
mod ladder;
mod memory;
mod roofline;
mod series;
mod spread;
mod svg;
mod tables;

use crate::result::SessionResult;
use pellucid_analysis::html::escape_json;
pub(super) use svg::{Axis, byte_tick, curve, escape, levels, mark, second_tick, text};

const STYLE: &str = include_str!("style.css");

/// A part of the page.
struct Section {
    id: &'static str,
    title: &'static str,
    /// How to read it, in a sentence.
    caption: &'static str,
    /// Whether it is a plot, to be marked up as a figure.
    is_plot: bool,
    body: String,
}

/// The whole session as a complete HTML document.
///
/// What there is no data for is left out; comparisons and states are always there and say so where they are empty.
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
    // Plain structs with string keys always serialise.
    out += &escape_json(&serde_json::to_string(result).unwrap_or_default());
    out += "</script>\n";
    document(&format!("{} · {}", result.suite.name, result.conclusion().name()), &out)
}

/// A complete document around a body.
pub(super) fn document(title: &str, body: &str) -> String {
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
    let nothing = "<p>Nothing was compared: no pair has two sides that answered and are right.</p>\n";
    let mut all = Vec::new();
    let mut add = |id, title, caption, is_plot, body: Option<String>| {
        if let Some(body) = body {
            all.push(Section { id, title, caption, is_plot, body });
        }
    };
    add(
        "comparisons",
        "Comparisons",
        "A ratio below ×1 means that the variant needs less; the noise is how far the reference seemed to be from itself, and \
         differences up to the margin count as none.",
        false,
        Some(tables::comparisons(result).unwrap_or_else(|| nothing.into())),
    );
    add(
        "forest",
        "Ratios",
        "Marks are ratios (left of ×1 is less, right is more), lines their 95 % intervals, open where they go on beyond the plot; \
         a whole interval outside the shaded margin and the dashed noise is a difference (▼ improved, ▲ regressed), one inside \
         the margin is none (●), any other leaves it open (○). Where ratios lie far apart, the \
         axis is logarithmic beyond a few percent.",
        true,
        forest::forest(result),
    );
    add(
        "spread",
        "Distributions",
        "Each mark is one fresh process, and the upright line is their median: groups that do not overlap differ without any \
         statistics, and a second clump within a group is a second mode. Where \
         values lie far apart, the axis is logarithmic.",
        true,
        spread::spread(result),
    );
    add(
        "series",
        "Order of running",
        "Each mark is one process against the median of its variant on its workload: a thick line (the running median) that leaves \
         zero is drift of the machine, not a difference between variants; crosses below are processes without a value.",
        true,
        series::series(result),
    );
    add(
        "ladder",
        "Overhead, step by step",
        "Each bar begins where the one above it ends and is as long as what its step adds, with its 95 % interval; the last bar is \
         the last rung against the first, measured by itself, and the dashed line is where the steps add up to.",
        true,
        ladder::ladder(result),
    );
    add(
        "cost",
        "Cost of captured layers",
        "Each mark is one process, the line is the fit, and the thin lines are the ends of the slope's 95 % interval: the slope is \
         what one more captured layer costs (marks of equal layers are spread sideways to be seen).",
        true,
        cost::cost(result),
    );
    add(
        "roofline",
        "Roofline",
        "Each mark is one kind of product: how many operations it does for each byte of weights that it reads, and how fast. The line is what \
         this machine allows, by its memory on the slope and by its multipliers on the flat, both measured beside it; a mark near the line \
         cannot become faster by better code, only by fewer bytes or operations.",
        true,
        roofline::roofline(result),
    );
    add(
        "memory",
        "Memory by phase",
        "Bars are medians over processes; what is anonymous (solid) is the process's own, what is file (striped) is mapped and can be \
         given back at any time.",
        true,
        memory::memory(result),
    );
    add(
        "correctness",
        "Correctness",
        "A cell tells whether a variant's numbers on a workload agree with the oracle's; wrong cells have no time, and reasons are \
         listed under the table.",
        false,
        Some(tables::matrix(result).unwrap_or_else(|| "<p>Nothing was run.</p>\n".into())),
    );
    add(
        "participants",
        "Variants and workloads",
        "Who was measured, and what they did.",
        false,
        Some(tables::participants(result)),
    );
    add(
        "session",
        "Command and session",
        "The exact command and the seed repeat the order of all processes.",
        false,
        Some(tables::session(result)),
    );
    add(
        "environment",
        "Environment",
        "The machine as it was when the session began.",
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
        "Numbers that are not finite, such as the ends of an interval of one pair, are written as words.",
        false,
        Some(raw),
    );
    all
}
