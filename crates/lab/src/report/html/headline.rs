//! Top of the page: the verdict and the main findings as text.

use super::forest::sign;
use super::svg::{capitalize, escape};
use crate::check::CellState;
use crate::report::format::{change, date};
use crate::result::{Comparison, SessionResult};
use crate::suite::Metric;
use crate::verdict::Verdict;

/// Maximum number of comparisons in the list; the table has all.
const MAX_POINTS: usize = 6;

pub(super) fn headline(result: &SessionResult) -> String {
    let conclusion = result.conclusion();
    let (class, _, symbol) = conclusion.verdict.map_or(("quiet", "", "·"), sign);
    let title =
        if result.suite.title.is_empty() { String::new() } else { format!("<p>{}</p>\n", escape(&result.suite.title)) };
    let mut out = format!(
        "<header>\n<h1>{}</h1>\n{title}<p class=\"verdict {class}\"><span>{symbol}</span> {}</p>\n",
        escape(&result.suite.name),
        escape(&format!("{}: {}.", capitalize(conclusion.name()), conclusion.why))
    );
    let points = points(result);
    if !points.is_empty() {
        out += &format!(
            "<ul>\n{}</ul>\n",
            points.iter().map(|point| format!("<li>{}</li>\n", escape(point))).collect::<String>()
        );
    }
    out + &format!(
        "<p class=\"quiet\">{} · {} in {:.0} s · model {} · seed {} · exit code {}</p>\n</header>\n",
        date(result.session.began),
        count(result.processes(), "process", "processes"),
        result.session.seconds,
        escape(&result.session.model),
        result.session.seed,
        conclusion.exit_code()
    )
}

fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn others(result: &SessionResult) -> impl Iterator<Item = &Comparison> {
    result.comparisons.iter().filter(|comparison| comparison.variant != comparison.reference)
}

/// Returns the main findings, worst first.
fn points(result: &SessionResult) -> Vec<String> {
    let mut points = Vec::new();
    for cell in result.cells.iter().filter(|cell| cell.state == CellState::SilentlyWrong) {
        points.push(format!("The output of {} on {} is wrong: {}.", cell.variant, cell.workload, cell.why));
    }
    points.extend(result.broken_limits.iter().map(|limit| format!("Limit exceeded: {limit}.")));
    let mut decided: Vec<&Comparison> =
        others(result).filter(|c| matches!(c.verdict, Verdict::Regressed | Verdict::Improved)).collect();
    decided.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(b.log_ratio.mean.abs().total_cmp(&a.log_ratio.mean.abs())));
    points.extend(decided.iter().take(MAX_POINTS).map(|c| describe(c)));
    if decided.len() > MAX_POINTS {
        points.push(format!("{} more are in the table.", decided.len() - MAX_POINTS));
    }
    let failed = result.cells.iter().filter(|cell| cell.state == CellState::Error).count();
    if failed > 0 {
        points.push(format!(
            "{} failed and {} no time.",
            count(failed, "cell", "cells"),
            if failed == 1 { "has" } else { "have" }
        ));
    }
    if !result.session.ended_early.is_empty() {
        points.push(format!("Ended early: {}.", result.session.ended_early));
    }
    points
}

/// Describes a decided comparison.
fn describe(c: &Comparison) -> String {
    let (low, high) = (change(c.log_ratio.low), change(c.log_ratio.high));
    let what = match (c.metric, c.log_ratio.mean > 0.0) {
        (Metric::Time, true) => "takes longer",
        (Metric::Time, false) => "takes less time",
        (Metric::Load, true) => "loads more slowly",
        (Metric::Load, false) => "loads faster",
        (Metric::Peak, true) => "needs more memory",
        (Metric::Peak, false) => "needs less memory",
    };
    let by = change(c.log_ratio.mean);
    format!("{} {what} than {} on {}: {by} ({low} to {high}, {} pairs).", c.variant, c.reference, c.workload, c.pairs)
}
