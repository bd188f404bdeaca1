//! A session as Markdown.

use super::{closure, quantity};
use crate::result::SessionResult;

/// The whole session.
pub fn markdown(result: &SessionResult) -> String {
    let mut out = format!(
        "# {}\n\n{}\n\n**{}** after {} processes in {:.0} s.\n\n",
        result.suite.name,
        result.suite.title,
        result.verdict(),
        result.runs.len(),
        result.session.seconds
    );
    out += "| workload | variant | compared with | what | value | ratio (95 %) | pairs | verdict |\n|---|---|---|---|---:|---:|---:|---|\n";
    for c in &result.comparisons {
        let ratio = c.log_ratio.exp();
        out += &format!(
            "| {} | {} | {} | {} | {} | {:.3} ({:.3} to {:.3}) | {} | {} |\n",
            c.workload,
            c.variant,
            c.reference,
            c.metric.name(),
            quantity(c.metric, c.value),
            ratio.mean,
            ratio.low,
            ratio.high,
            c.pairs,
            c.verdict
        );
    }
    out += "\n| workload | variant | state | largest difference | |\n|---|---|---|---:|---|\n";
    for cell in &result.cells {
        out += &format!(
            "| {} | {} | {:?} | {:.1e} | {} |\n",
            cell.workload,
            cell.variant,
            cell.state,
            cell.max_abs,
            cell.why.replace('|', "/")
        );
    }
    if !result.allocations.is_empty() {
        out += "\n| workload | variant | allocations | bytes | at most alive |\n|---|---|---:|---:|---:|\n";
    }
    for counted in &result.allocations {
        let found = &counted.allocations;
        out += &format!(
            "| {} | {} | {} | {} | {} |\n",
            counted.workload, counted.variant, found.count, found.bytes, found.peak_live
        );
    }
    let closure = closure(result);
    if !closure.is_empty() {
        out += &format!("\n{closure}");
    }
    for limit in &result.broken_limits {
        out += &format!("\n**Broken:** {limit}\n");
    }
    out += "\n| machine | |\n|---|---|\n";
    for (key, value) in result.environment.hard.iter().chain(&result.environment.soft) {
        out += &format!("| {key} | {} |\n", value.replace('|', "/"));
    }
    out
}
