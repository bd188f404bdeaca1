//! Compares a result with a baseline: each benchmark is red (slower), green (faster) or neutral.

use super::result::{IdentifyResult, Times};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Equivalence margin: relative changes up to this are neutral.
pub const MARGIN: f64 = 0.05;

/// Minimum number of rounds for a verdict. With five rounds each, complete separation by chance has
/// a probability of 1 in 252.
const MIN_ROUNDS: usize = 5;

/// Changes since a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineComparison {
    /// Timestamp of the baseline.
    pub baseline: String,
    /// Benchmarks with a time in both results.
    pub changes: Vec<Change>,
    /// Benchmarks with a time in only one of them.
    pub unmatched: Vec<String>,
}

/// Change of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Mean of the baseline, in seconds.
    pub before: f64,
    /// Mean now, in seconds.
    pub after: f64,
    /// Relative change of the mean.
    pub change: f64,
    /// Relative change of the median, which a single slow round does not move.
    pub median_change: f64,
    /// Whether the rounds are separated: every round of one result is faster than every round of
    /// the other.
    pub clear: bool,
    /// The verdict.
    pub verdict: Color,
}

/// The verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Color {
    /// Slower: mean and median changed by more than the margin, and the rounds are separated.
    Red,
    /// Faster, by the same rule.
    Green,
    /// Neither.
    Neutral,
}

impl BaselineComparison {
    /// Returns the number of changes with this verdict.
    pub fn count(&self, verdict: Color) -> usize {
        self.changes.iter().filter(|change| change.verdict == verdict).count()
    }

    /// Whether most benchmarks moved in the same direction. Then the machine has more likely
    /// changed than the code.
    pub fn moved_together(&self) -> bool {
        let more = |sign: f64| self.changes.iter().filter(|change| change.change * sign > MARGIN).count();
        self.changes.len() > 4 && more(1.0).max(more(-1.0)) * 2 > self.changes.len()
    }
}

/// Compares two runs.
///
/// # Errors
/// If machine, build or model differ.
pub fn compare(before: &IdentifyResult, after: &IdentifyResult) -> Result<BaselineComparison> {
    let mismatches = before.env.mismatches(&after.env);
    if !mismatches.is_empty() {
        return Err(Error::Mismatch(mismatches));
    }
    // Categories that were not measured now do not count as unmatched.
    let selected = before.results.iter().filter(|row| after.summary.categories.contains(&row.category));
    let mut then: BTreeMap<&str, &Times> =
        selected.filter_map(|row| Some((row.name.as_str(), row.times.as_ref()?))).collect();
    let (mut changes, mut unmatched) = (Vec::new(), Vec::new());
    for row in &after.results {
        match (then.remove(row.name.as_str()), &row.times) {
            (Some(before), Some(after)) => changes.push(judge(&row.name, before, after)),
            (None, None) => {}
            _ => unmatched.push(row.name.clone()),
        }
    }
    unmatched.extend(then.into_keys().map(String::from));
    Ok(BaselineComparison { baseline: before.timestamp.clone(), changes, unmatched })
}

/// Compares one benchmark.
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
