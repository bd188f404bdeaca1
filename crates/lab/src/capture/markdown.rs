//! The suite as a Markdown page.

use super::findings::percent;
use super::mode::Mode;
use super::overhead::{Bar, Overhead};
use super::peer::PeerResult;
use super::result::{CaptureResult, CaptureSuite};
use crate::report::svg::capitalize;
use crate::report::{bytes, seconds};

/// The whole page.
pub fn page(suite: &CaptureSuite) -> String {
    let mut out = head(suite);
    if !suite.invalid.is_empty() {
        out += "\n**Wrong results: do not use the times.**\n\n";
        out += &suite.invalid.iter().map(|problem| format!("- {problem}\n")).collect::<String>();
    }
    out += "\n## Modes\n\n";
    out += &table(&MODE_COLUMNS, suite.modes.iter().map(mode_row));
    out += "\n## Overheads\n\nFractions of the baseline's generation time, paired by round, with 95 % confidence intervals.\n\n";
    out += &table(&OVERHEAD_COLUMNS, suite.overheads.iter().map(overhead_row));
    out += "\n## Bars\n\n";
    out += &table(&BAR_COLUMNS, suite.bars.iter().map(bar_row));
    out += "\n## Findings\n\n";
    for finding in &suite.findings {
        out += &format!("- **{}** {}.\n", finding.about, capitalize(&finding.text));
    }
    if !suite.peers.is_empty() {
        out += "\n## The same prompts in other libraries\n\n";
        out += &table(&PEER_COLUMNS, suite.peers.iter().map(peer_row));
        out += "\nEqual tokens: those before the first difference in a request. With random prompts two logits can be \
                nearly equal, and rounding decides; the captured activations are compared too.\n";
    }
    out
}

/// Title, size and environment.
fn head(suite: &CaptureSuite) -> String {
    let Some(first) = suite.modes.first() else { return "# Cost of captures\n".into() };
    let fact = |key: &str| first.environment.hard.get(key).map_or("unknown", String::as_str);
    format!(
        "# Cost of captures in batched generation\n\n\
         {}: {}; {} layers. \
         {} rounds in mirrored order, each process {} timed iterations; prefix cache off. \
         {}, {} cores, {} build, {}.\n",
        first.model,
        first.workload(),
        first.total_layers,
        suite.rounds,
        suite.iterations,
        fact("cpu"),
        fact("cores"),
        fact("build"),
        suite.timestamp
    )
}

/// Columns of the table of modes.
pub(super) const MODE_COLUMNS: [&str; 10] = [
    "Mode",
    "Layers",
    "Generation",
    "± MAD",
    "Fetch",
    "Prefill tok/s",
    "Decode tok/s",
    "Captured",
    "Peak memory",
    "Checked",
];

/// Cells of a mode.
pub(super) fn mode_row(result: &CaptureResult) -> [String; 10] {
    let summary = &result.summary;
    let predicted = if result.captured_bytes.observed == result.captured_bytes.predicted { "" } else { " (wrong)" };
    let forward = match result.equals_forward_pass {
        Some(true) => ", bits of a forward pass",
        Some(false) => ", differs from a forward pass",
        None => "",
    };
    [
        result.mode.name().into(),
        result.num_captured_layers.to_string(),
        seconds(summary.median_generation_time),
        seconds(summary.mad_generation_time),
        seconds(summary.mean_fetch_time),
        format!("{:.0}", summary.prefill_tokens_per_sec),
        format!("{:.0}", summary.decode_tokens_per_sec),
        format!("{}{predicted}", bytes(result.captured_bytes.observed as f64)),
        bytes(result.peak_memory_bytes as f64),
        format!("{} rows{forward}", result.rows_checked),
    ]
}

/// Columns of the table of overheads.
pub(super) const OVERHEAD_COLUMNS: [&str; 6] = ["Mode", "Generation", "CPU time", "Fetch", "Total", "Drift"];

/// Cells of an overhead.
pub(super) fn overhead_row(overhead: &Overhead) -> [String; 6] {
    let name = match overhead.mode {
        Mode::Baseline => "baseline against itself (A/A)",
        mode => mode.name(),
    };
    let fetched = |value: String| if overhead.mode.captures() { value } else { "—".into() };
    [
        name.into(),
        percent(&overhead.generation),
        percent(&overhead.cpu),
        fetched(percent(&overhead.fetch)),
        fetched(percent(&overhead.total)),
        overhead.drift.as_ref().map_or_else(|| "—".into(), percent),
    ]
}

/// Columns of the table of bars.
pub(super) const BAR_COLUMNS: [&str; 5] = ["Bar", "Limit", "Measured", "In CPU time", "State"];

/// Cells of a bar.
pub(super) fn bar_row(bar: &Bar) -> [String; 5] {
    let sign = if bar.two_sided { "within ±" } else { "at most +" };
    [
        bar.name.clone(),
        format!("{sign}{} %", bar.limit * 100.0),
        percent(&bar.value),
        bar.cpu.as_ref().map_or_else(|| "—".into(), percent),
        bar.state.name().into(),
    ]
}

/// Columns of the table of peers.
pub(super) const PEER_COLUMNS: [&str; 7] =
    ["Library", "Generation", "Against ours", "CPU time", "Captured", "Peak memory", "Output"];

/// Cells of a peer.
pub(super) fn peer_row(peer: &PeerResult) -> [String; 7] {
    let difference =
        peer.largest_difference.map_or_else(String::new, |difference| format!(", activations within {difference:.1e}"));
    let agrees = if peer.agrees { "" } else { "**disagrees**: " };
    [
        format!("{} ({})", peer.name, peer.engine),
        seconds(peer.summary.median_generation_time),
        format!("×{:.2}", peer.times_ours),
        format!("×{:.2}", peer.cpu_times_ours),
        bytes(peer.captured_bytes as f64),
        bytes(peer.peak_memory_bytes as f64),
        format!(
            "{agrees}{} of {} requests equal, {:.1} % of tokens{difference}",
            peer.equal_requests,
            peer.requests,
            peer.equal_tokens * 100.0
        ),
    ]
}

fn table<const N: usize>(columns: &[&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(N));
    for row in rows {
        out += &format!("| {} |\n", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    out
}
