//! The suite as one self-contained web page: plots of cost and of time against layers, tables, and
//! the raw result.

use super::markdown::{
    BAR_COLUMNS, MODE_COLUMNS, OVERHEAD_COLUMNS, PEER_COLUMNS, bar_row, mode_row, overhead_row, peer_row,
};
use super::mode::Mode;
use super::overhead::LayerFit;
use super::result::CaptureSuite;
use crate::report::svg::{
    Axis, PlotRow, bar, capitalize, curve, escape, grid, horizontal_line, mark, rows, second_tick, text, vertical_line,
};
use crate::report::{document, seconds};
use pellucid_analysis::html::escape_json;

/// Height of the scatter plot in pixels.
const HEIGHT: f64 = 230.0;
/// Height of a bar's row in pixels.
const ROW_HEIGHT: f64 = 28.0;

/// The whole page.
pub fn page(suite: &CaptureSuite) -> String {
    let mut out = headline(suite);
    out += "<main>\n";
    out += &section(
        "overheads",
        "Cost of each mode",
        "Change of the generation time against the baseline of the same round; the lighter part is the fetch. Lines are 95 % \
         confidence intervals. The first row is the baseline against itself: differences of that size are noise.",
        &overhead_plot(suite),
    );
    if let Some(fit) = &suite.fit {
        out += &section(
            "layers",
            "Generation time against captured layers",
            "Each mark is one process, scaled to the mean baseline by its round (with horizontal jitter). The line is the linear fit, the \
             dashed lines are the bounds of its slope.",
            &layer_plot(fit),
        );
    }
    let findings: String = suite
        .findings
        .iter()
        .map(|finding| format!("<li><b>{}</b> {}.</li>\n", escape(&finding.about), escape(&capitalize(&finding.text))))
        .collect();
    out += &section("findings", "Findings", "", &format!("<ul class=\"why\">{findings}</ul>"));
    out += &section(
        "bars",
        "Bars",
        "A bar is met if the whole confidence interval is within its limit, and missed if it is beyond it by more than the noise.",
        &table(&BAR_COLUMNS, suite.bars.iter().map(bar_row)),
    );
    out += &section("modes", "Modes", "", &table(&MODE_COLUMNS, suite.modes.iter().map(mode_row)));
    out += &section("figures", "Overheads", "", &table(&OVERHEAD_COLUMNS, suite.overheads.iter().map(overhead_row)));
    if !suite.peers.is_empty() {
        out += &section(
            "peers",
            "The same prompts in other libraries",
            "Tokens and captured activations are compared with ours.",
            &table(&PEER_COLUMNS, suite.peers.iter().map(|peer| peer_row(peer).map(|cell| cell.replace("**", "")))),
        );
    }
    out += "</main>\n<script type=\"application/json\" id=\"data\">";
    // Plain structs with string keys always serialize.
    out += &escape_json(&serde_json::to_string(suite).unwrap_or_default());
    out += "</script>\n";
    document("Cost of captures", &out)
}

fn headline(suite: &CaptureSuite) -> String {
    let Some(first) = suite.modes.first() else { return "<h1>Cost of captures</h1>\n".into() };
    let fact = |key: &str| escape(first.environment.hard.get(key).map_or("unknown", String::as_str));
    let wrong: String = suite.invalid.iter().map(|problem| format!("<li>{}</li>", escape(problem))).collect();
    let wrong = match wrong.is_empty() {
        true => String::new(),
        false => format!("<p class=\"verdict invalid\">Wrong results: do not use the times.</p><ul>{wrong}</ul>"),
    };
    format!(
        "<header><h1>Cost of captures in batched generation</h1>\n\
         <p>{}: {}, {} layers; {} rounds in mirrored order, {} timed \
         iterations per process; prefix cache off.</p>\n<p class=\"quiet\">{}, {} cores, {} build, {}</p>{wrong}</header>\n",
        escape(&first.model),
        first.workload(),
        first.total_layers,
        suite.rounds,
        suite.iterations,
        fact("cpu"),
        fact("cores"),
        fact("build"),
        escape(&suite.timestamp)
    )
}

fn section(id: &str, title: &str, caption: &str, body: &str) -> String {
    let caption = match caption.is_empty() {
        true => String::new(),
        false => format!("<p class=\"caption\">{}</p>", caption.replace(" %", "\u{a0}%")),
    };
    format!(
        "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{title}</h2>\n{body}{caption}\n</section>\n"
    )
}

fn table<const N: usize>(columns: &[&str; N], cells: impl Iterator<Item = [String; N]>) -> String {
    let head: String = columns.iter().map(|column| format!("<th>{column}</th>")).collect();
    let mut out = format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>\n");
    for row in cells {
        let [name, rest @ ..] = &row[..] else { continue };
        let rest: String = rest.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        out += &format!("<tr><th class=\"name\">{}</th>{rest}</tr>\n", escape(name));
    }
    out + "</tbody></table></div>\n"
}

/// Bars of generation and fetch overhead with their intervals.
fn overhead_plot(suite: &CaptureSuite) -> String {
    let finite = |value: f64, or: f64| if value.is_finite() { value } else { or };
    let ends = suite.overheads.iter().flat_map(|overhead| {
        let generation = &overhead.generation;
        [0.0, finite(generation.low, 0.0), finite(generation.high, 0.0), generation.mean, overhead.total.mean]
    });
    let logs: Vec<f64> = ends.filter(|value| *value > -1.0).map(f64::ln_1p).collect();
    let axis = Axis::changes(logs);
    let at = |value: f64| axis.to_percent(value.max(-0.99).ln_1p());
    let middle = ROW_HEIGHT / 2.0;
    let row = |overhead: &super::overhead::Overhead| {
        let generation = &overhead.generation;
        let mut marks = vertical_line("one", at(0.0), 0.0, ROW_HEIGHT);
        marks += &bar("step", at(0.0), at(generation.mean), 6.0, ROW_HEIGHT - 12.0);
        if overhead.mode.captures() {
            marks += &bar("margin", at(generation.mean), at(overhead.total.mean), 9.0, ROW_HEIGHT - 18.0);
        }
        if generation.low.is_finite() && generation.high.is_finite() {
            marks += &horizontal_line("interval", at(generation.low), at(generation.high), middle);
            for end in [generation.low, generation.high] {
                marks += &vertical_line("interval", at(end), middle - 4.0, middle + 4.0);
            }
        }
        let [name, value, ..] = overhead_row(overhead);
        let layers = match overhead.mode {
            Mode::Baseline | Mode::ZeroLayer | Mode::NoopHook => String::new(),
            _ => format!(" <span>{} layers</span>", overhead.layers),
        };
        PlotRow {
            label: escape(&name) + &layers,
            title: format!("{name}: {value}"),
            value: format!("<small>{}</small>", escape(&value)),
            marks,
            height: ROW_HEIGHT as u32,
        }
    };
    rows(&axis, &suite.overheads.iter().map(row).collect::<Vec<_>>())
}

/// Scatter plot of generation time against captured layers.
fn layer_plot(fit: &LayerFit) -> String {
    let most = fit.points.iter().map(|(x, _)| *x).fold(0.0, f64::max);
    let x_axis = Axis::from_zero([most], |tick, _| format!("{tick}"));
    let line = |x: f64| fit.base.mean + fit.per_layer.mean * x;
    let y_axis = Axis::of(fit.points.iter().map(|(_, y)| *y).chain([line(0.0), line(most)]), second_tick);
    let n = fit.points.len().max(1) as f64;
    let centroid = fit.points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let mut marks = grid(&x_axis, &y_axis, HEIGHT);
    for (class, slope) in
        [("fit-edge", fit.per_layer.low), ("fit-edge", fit.per_layer.high), ("fit", fit.per_layer.mean)]
    {
        if slope.is_finite() {
            let at = |x: f64| (x_axis.to_percent(x), y_axis.to_px(centroid.1 + slope * (x - centroid.0), HEIGHT));
            marks += &curve(class, &[at(0.0), at(most)], HEIGHT);
        }
    }
    for (index, (x, y)) in fit.points.iter().enumerate() {
        let jitter = (index % 5) as f64 * 0.6 - 1.2;
        marks += &mark("dot v0", "s0", x_axis.to_percent(*x) + jitter, y_axis.to_px(*y, HEIGHT));
    }
    marks += &text(50.0, HEIGHT + 38.0, "middle", "captured layers");
    let summary =
        format!("{} without captures, {} more per captured layer", seconds(fit.base.mean), seconds(fit.per_layer.mean));
    format!(
        "<svg class=\"plot\" height=\"{}\" role=\"img\"><title>{summary}</title>{marks}</svg>\n<p class=\"summary\">{summary}.</p>\n",
        HEIGHT + 44.0
    )
}
