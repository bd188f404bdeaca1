//! Reports of a session: text (here), Markdown, a web page, and Bencher's format.

mod bencher;
mod format;
mod history;
mod html;
mod ladder;
mod markdown;
mod peers;
mod performance;

pub use bencher::bencher;
pub use format::quantity;
pub(crate) use format::{bytes, date, seconds};
pub use history::{history_html, history_text};
pub use html::html;
pub(crate) use html::{document, svg};
pub use ladder::ladder_summary;
pub use markdown::markdown;
pub use peers::peers_page;
pub use performance::performance_page;

use crate::check::CellState;
use crate::result::{AllocationCounts, Comparison, CostModel, SessionResult};

/// Formats one comparison as a line of text.
pub fn line(comparison: &Comparison) -> String {
    row(comparison, widths(&[]))
}

/// Formats comparisons as a table with a heading; columns are as wide as their longest entry.
pub fn lines(comparisons: &[Comparison]) -> String {
    let widths = widths(comparisons);
    let (a, b) = widths;
    let mut out = format!(
        "{:<a$} {:<b$} {:<5} {:>11} {:>8} {:<18} {:>5} {:>8}  verdict\n",
        "workload", "variant / compared with", "what", "value", "ratio", "(95 %)", "pairs", "noise"
    );
    for comparison in comparisons {
        out += &row(comparison, widths);
        out.push('\n');
    }
    out
}

/// Returns the widths of the name columns, in characters, as `format!` pads them.
fn widths(comparisons: &[Comparison]) -> (usize, usize) {
    let most = |name: fn(&Comparison) -> String, least: usize| {
        comparisons.iter().map(|comparison| name(comparison).chars().count()).fold(least, usize::max)
    };
    (most(|c| c.workload.clone(), 12), most(format::sides, 24))
}

fn row(comparison: &Comparison, (a, b): (usize, usize)) -> String {
    let needed = comparison.pairs_needed.map_or_else(String::new, |pairs| format!(", {pairs} pairs needed"));
    format!(
        "{:<a$} {:<b$} {:<5} {:>11} {:>8} {:<18} {:>5} {:>8}  {}{needed}",
        comparison.workload,
        format::sides(comparison),
        comparison.metric.name(),
        quantity(comparison.metric, comparison.value),
        format::times(comparison.log_ratio.mean.exp()),
        format!("({})", format::ends(&comparison.log_ratio)),
        comparison.pairs,
        format::noise(comparison.noise),
        comparison.verdict,
    )
}

/// Formats the allocations of one run as a line.
pub fn allocation_line(counts: &AllocationCounts) -> String {
    let found = &counts.allocations;
    format!(
        "allocations of {} on {}: {}, {:.2} MB, peak {:.2} MB live",
        counts.variant,
        counts.workload,
        found.count,
        found.bytes as f64 / 1e6,
        found.peak_live as f64 / 1e6
    )
}

/// Formats the whole session as plain text.
pub fn text(result: &SessionResult) -> String {
    let mut out = format!("{}: {}\n\n", result.suite.name, result.suite.title);
    out += &lines(&result.comparisons);
    let wrong: Vec<_> = result.cells.iter().filter(|cell| cell.state >= CellState::Error).collect();
    for cell in wrong {
        out += &format!("{}: {} on {}: {}\n", cell.state.name(), cell.variant, cell.workload, cell.why);
    }
    for model in &result.cost_models {
        out += &format!("{}\n", cost_line(model));
    }
    for counts in &result.allocations {
        out += &format!("{}\n", allocation_line(counts));
    }
    out += &ladder_summary(result);
    for limit in &result.broken_limits {
        out += &format!("limit exceeded: {limit}\n");
    }
    if !result.session.ended_early.is_empty() {
        out += &format!("ended early: {}\n", result.session.ended_early);
    }
    let conclusion = result.conclusion();
    out + &format!(
        "\n{} processes in {:.0} s, seed {}: {}\n({})\n",
        result.processes(),
        result.session.seconds,
        result.session.seed,
        conclusion.name(),
        conclusion.why
    )
}

/// Formats a cost model as a line.
fn cost_line(model: &CostModel) -> String {
    let each = &model.per_layer;
    format!(
        "cost on {}: {} + {} per captured layer ({} to {}), R² {}",
        model.workload,
        format::seconds(model.base.mean),
        format::seconds(each.mean),
        format::seconds(each.low),
        format::seconds(each.high),
        if model.r2.is_finite() { format!("{:.3}", model.r2) } else { "—".into() },
    )
}
