//! A run against an earlier one: red, green or neutral.

use super::result::{Run, Times};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The share of the mean below which a change is none.
pub const MARGIN: f64 = 0.05;

/// Fewer rounds than these overlap too seldom by chance for a verdict: of five and five, one in 252 is wholly slower.
const LEAST_ROUNDS: usize = 5;

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
    /// What that amounts to.
    pub verdict: Colour,
}

/// What a change amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Colour {
    /// Slower by more than the margin, on average and in the middle, and in every round.
    Red,
    /// Faster by as much.
    Green,
    /// Neither.
    Neutral,
}

impl Colour {
    /// Its sign and name.
    pub fn sign(self) -> &'static str {
        match self {
            Colour::Red => "🔴 red",
            Colour::Green => "🟢 green",
            Colour::Neutral => "⚪ neutral",
        }
    }
}

impl Comparison {
    /// What became slower.
    pub fn reds(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.verdict == Colour::Red)
    }

    /// Whether most of the suite moved the same way: then it is more likely the machine than the code.
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
    // Where only a part was measured, the rest is nobody's loss.
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
    let enough = [before, after].iter().all(|times| times.round_means.len() >= LEAST_ROUNDS);
    let clear = enough && (now_fast > slow || now_slow < fast);
    let verdict = match clear {
        true if change.min(median_change) > MARGIN => Colour::Red,
        true if change.max(median_change) < -MARGIN => Colour::Green,
        _ => Colour::Neutral,
    };
    let (before, after) = (before.mean_time, after.mean_time);
    Change { name: name.into(), before, after, change, median_change, clear, verdict }
}

#[cfg(test)]
mod tests {
    use super::super::measure::times;
    use super::*;

    fn rounds(means: &[f64]) -> Times {
        let samples: Vec<u64> = means.iter().map(|mean| (mean * 1e9) as u64).collect();
        times(&samples, means.to_vec())
    }

    #[test]
    fn a_verdict_needs_the_margin_and_rounds_that_do_not_overlap() {
        let said = |before: &[f64], after: &[f64]| judge("b", &rounds(before), &rounds(after)).verdict;
        let about = |mean: f64| [0.0, 0.01, -0.01, 0.005, -0.005].map(|off| mean + off);
        let quiet = about(1.0);
        assert_eq!(said(&quiet, &about(1.10)), Colour::Red);
        assert_eq!(said(&quiet, &about(0.90)), Colour::Green);
        assert_eq!(said(&quiet, &about(1.04)), Colour::Neutral, "clear, and within the margin");
        assert_eq!(said(&quiet, &[1.0, 1.5, 1.2, 1.3, 1.4]), Colour::Neutral, "slower by a quarter, and not clear");
        assert_eq!(said(&[0.8, 1.2, 1.0, 1.0, 1.0], &about(1.15)), Colour::Neutral);
        assert_eq!(said(&[2.0, 1.01, 1.01, 1.01, 1.01], &[1.0; 5]), Colour::Neutral, "one slow moment is no change");
        assert_eq!(said(&[1.0; 4], &[2.0; 4]), Colour::Neutral, "so few rounds are apart by chance");
    }

    #[test]
    fn what_moved_together_is_said_to_have() {
        let change = |change: f64| Change {
            name: "b".into(),
            before: 1.0,
            after: 1.0 + change,
            change,
            median_change: change,
            clear: true,
            verdict: Colour::Neutral,
        };
        let of = |changes: &[f64]| Comparison {
            baseline: String::new(),
            changes: changes.iter().copied().map(change).collect(),
            unmatched: vec![],
        };
        assert!(of(&[0.1, 0.2, 0.3, 0.0, 0.1]).moved_together());
        assert!(!of(&[0.1, -0.2, 0.0, 0.0, 0.1]).moved_together());
    }
}
