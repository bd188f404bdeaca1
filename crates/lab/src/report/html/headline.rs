//! The top of the page: the verdict, in words.

use super::forest::sign;
use super::svg::{capital, escape};
use crate::check::State;
use crate::report::format::{change, date};
use crate::result::{Comparison, SessionResult};
use crate::suite::Metric;
use crate::verdict::Verdict;

/// Comparisons that are told of in words; the table has all.
const TOLD: usize = 6;

pub(super) fn headline(result: &SessionResult) -> String {
    let conclusion = result.conclusion();
    let (class, _, symbol) = conclusion.verdict.map_or(("quiet", "", "·"), sign);
    let title =
        if result.suite.title.is_empty() { String::new() } else { format!("<p>{}</p>\n", escape(&result.suite.title)) };
    let mut out = format!(
        "<header>\n<h1>{}</h1>\n{title}<p class=\"verdict {class}\"><span>{symbol}</span> {}</p>\n",
        escape(&result.suite.name),
        escape(&format!("{}: {}.", capital(conclusion.name()), conclusion.why))
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
        count(result.runs.len(), "process", "processes"),
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

/// What a reader must know, worst first.
fn points(result: &SessionResult) -> Vec<String> {
    let mut points = Vec::new();
    for cell in result.cells.iter().filter(|cell| cell.state == State::SilentlyWrong) {
        points.push(format!("The numbers of {} on {} are wrong: {}.", cell.variant, cell.workload, cell.why));
    }
    points.extend(result.broken_limits.iter().map(|limit| format!("Limit broken: {limit}.")));
    let mut decided: Vec<&Comparison> =
        others(result).filter(|c| matches!(c.verdict, Verdict::Regressed | Verdict::Improved)).collect();
    decided.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(b.log_ratio.mean.abs().total_cmp(&a.log_ratio.mean.abs())));
    points.extend(decided.iter().take(TOLD).map(|c| told(c)));
    if decided.len() > TOLD {
        points.push(format!("{} more are in the table.", decided.len() - TOLD));
    }
    let failed = result.cells.iter().filter(|cell| cell.state == State::Error).count();
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

/// A decided comparison in words.
fn told(c: &Comparison) -> String {
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
