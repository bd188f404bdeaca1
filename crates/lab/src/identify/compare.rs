//! A run against an earlier one: red, green or neutral.

use super::result::{Run, Times};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The share of the mean below which a change is none.
pub const MARGIN: f64 = 0.05;

/// The fewest rounds for a verdict: of five and five, one in 252 is wholly slower by chance.
const MIN_ROUNDS: usize = 5;

/// What changed since a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// When the baseline was measured.
    pub baseline: String,
    /// Every benchmark that both have.
    pub changes: Vec<Change>,
    /// Benchmarks with a time in one of the two only.
    pub unmatched: Vec<String>,
}

/// A benchmark then and now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// The mean then, in seconds.
    pub before: f64,
    /// The mean now.
    pub after: f64,
    /// The change of the mean as a share of the earlier one.
    pub change: f64,
    /// The change of the median, which a single slow moment does not move.
    pub median_change: f64,
    /// Whether every round of one run was faster than every round of the other.
    pub clear: bool,
    /// The verdict.
    pub verdict: Color,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Color {
    /// Slower by more than the margin, in mean and median, and in every round.
    Red,
    /// Faster by as much.
    Green,
    /// Neither.
    Neutral,
}

impl Comparison {
    /// The number of changes with a verdict.
    pub fn count(&self, verdict: Color) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }

    /// Whether most of the suite moved the same way: then the machine has more likely changed than the code.
    pub fn moved_together(&self) -> bool {
        let more = |sign: f64| self.changes.iter().filter(|change| change.change * sign > MARGIN).count();
        self.changes.len() > 4 && more(1.0).max(more(-1.0)) * 2 > self.changes.len()
    }
}

/// Compares two runs.
///
/// # Errors
/// If machine, build or model differ: such numbers say nothing about the code.
pub fn compare(before: &Run, after: &Run) -> Result<Comparison> {
    let mismatches = before.env.mismatches(&after.env);
    if !mismatches.is_empty() {
        return Err(Error::Mismatch(mismatches));
    }
    // Where only some categories were measured, the others are not missing.
    let asked = before.results.iter().filter(|row| after.summary.categories.contains(&row.category));
    let mut then: BTreeMap<&str, &Times> =
        asked.filter_map(|row| Some((row.name.as_str(), row.times.as_ref()?))).collect();
    let (mut changes, mut unmatched) = (Vec::new(), Vec::new());
    for row in &after.results {
        match (then.remove(row.name.as_str()), &row.times) {
            (Some(before), Some(after)) => changes.push(judge(&row.name, before, after)),
            (None, None) => {}
            _ => unmatched.push(row.name.clone()),
        }
    }
    unmatched.extend(then.into_keys().map(String::from));
    Ok(Comparison { baseline: before.timestamp.clone(), changes, unmatched })
}

/// Judges one benchmark.
pub fn judge(name: &str, before: &Times, after: &Times) -> Change {
    let change = after.mean_time / before.mean_time - 1.0;
    let median_change = after.median_time / before.median_time - 1.0;
    let ((fast, slow), (now_fast, now_slow)) = (before.spread(), after.spread());
    let enough = [before, after].iter().all(|times| times.round_means.len() >= MIN_ROUNDS);
    let clear = enough && (now_fast > slow || now_slow < fast);
    let verdict = match clear {
        true if change.min(median_change) > MARGIN => Color::Red,
        true if change.max(median_change) < -MARGIN => Color::Green,
        _ => Color::Neutral,
    };
    let (before, after) = (before.mean_time, after.mean_time);
    Change { name: name.into(), before, after, change, median_change, clear, verdict }
}
