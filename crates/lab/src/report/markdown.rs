//! A session as Markdown: the content of the web page without its plots.

use super::format::{change, date, difference, noise, ratio, share};
use super::{cost_line, ladder_summary, quantity};
use crate::result::SessionResult;

/// Escapes text for a table cell.
pub(super) fn cell(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '[' | '<' => out.extend(['\\', c]),
            '\n' | '\r' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Formats the whole session.
pub fn markdown(result: &SessionResult) -> String {
    let conclusion = result.conclusion();
    let mut out = format!(
        "# {}\n\n{}\n\n**{}** after {} processes in {:.0} s: {}.\n\n",
        cell(&result.suite.name),
        cell(&result.suite.title),
        conclusion.name(),
        result.processes(),
        result.session.seconds,
        cell(&conclusion.why)
    );
    if !result.session.ended_early.is_empty() {
        out += &format!("Ended early: {}.\n\n", cell(&result.session.ended_early));
    }
    for limit in &result.broken_limits {
        out += &format!("**Limit exceeded:** {}\n\n", cell(limit));
    }
    out += &comparisons(result);
    out += &cells(result);
    let costs: String = result.cost_models.iter().map(|model| cost_line(model) + "\n").collect();
    for line in (ladder_summary(result) + &costs).lines() {
        out += &format!("\n{}\n", cell(line));
    }
    out + &session(result)
}

fn comparisons(result: &SessionResult) -> String {
    let mut out = String::from(
        "| workload | variant | compared with | what | value | ratio (95 %) | pairs | noise | margin | outliers | drift | verdict |\n\
         |---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for c in &result.comparisons {
        let needed = c.pairs_needed.map_or_else(String::new, |pairs| format!(" ({pairs} pairs needed)"));
        // Only significant drift is printed.
        let drift = c.drift.filter(|drift| drift.is_significant()).map_or_else(String::new, |drift| change(drift.mean));
        out += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {drift} | {}{needed} |\n",
            cell(&c.workload),
            cell(&c.variant),
            cell(&c.reference),
            c.metric.name(),
            quantity(c.metric, c.value),
            ratio(&c.log_ratio),
            c.pairs,
            noise(c.noise),
            share(c.margin),
            c.outliers.0,
            c.verdict
        );
    }
    out
}

fn cells(result: &SessionResult) -> String {
    let mut out = String::from("\n| workload | variant | state | largest difference | why |\n|---|---|---|---:|---|\n");
    for found in &result.cells {
        out += &format!(
            "| {} | {} | {} | {} | {} |\n",
            cell(&found.workload),
            cell(&found.variant),
            found.state.name(),
            difference(found.max_abs),
            cell(&found.why)
        );
    }
    if !result.allocations.is_empty() {
        out += "\n| workload | variant | allocations | bytes | peak live bytes |\n|---|---|---:|---:|---:|\n";
    }
    for counts in &result.allocations {
        let found = &counts.allocations;
        out += &format!(
            "| {} | {} | {} | {} | {} |\n",
            cell(&counts.workload),
            cell(&counts.variant),
            found.count,
            found.bytes,
            found.peak_live
        );
    }
    out
}

fn session(result: &SessionResult) -> String {
    let session = &result.session;
    let mut out = String::from("\n| session | |\n|---|---|\n");
    for (key, value) in [
        ("command", session.command.join(" ")),
        ("model", session.model.clone()),
        ("began", date(session.began)),
        ("seed", session.seed.to_string()),
        ("exit code", result.exit_code().to_string()),
    ] {
        out += &format!("| {key} | {} |\n", cell(&value));
    }
    for (kind, facts) in [("must agree", &result.environment.hard), ("may differ", &result.environment.soft)] {
        out += &format!("\n| machine: {kind} | |\n|---|---|\n");
        for (key, value) in facts {
            out += &format!("| {} | {} |\n", cell(key), cell(value));
        }
    }
    out
}
