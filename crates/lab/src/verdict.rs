//! What may be said about a comparison.

use crate::stats::Estimate;
use serde::{Deserialize, Serialize};

/// The five things that may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval lies below what counts as a difference.
    Improved,
    /// The whole interval lies within the margin.
    Equivalent,
    /// The interval is too wide to say.
    Inconclusive,
    /// The whole interval lies above what counts as a difference.
    Regressed,
    /// The session cannot be trusted.
    Invalid,
}

impl Verdict {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Improved => "improved",
            Verdict::Equivalent => "equivalent",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Regressed => "regressed",
            Verdict::Invalid => "invalid",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The verdict on a mean logarithm of `after / before`, where less is better.
///
/// A difference counts when it clears both the margin and the noise that the session found between a variant and itself.
pub fn judge(log_ratio: &Estimate, margin: f64, noise: f64) -> Verdict {
    let bar = (1.0 + margin).ln().max(noise);
    if log_ratio.low > bar {
        Verdict::Regressed
    } else if log_ratio.high < -bar {
        Verdict::Improved
    } else if log_ratio.low > -(1.0 + margin).ln() && log_ratio.high < (1.0 + margin).ln() {
        Verdict::Equivalent
    } else {
        Verdict::Inconclusive
    }
}

/// How many pairs would let an inconclusive comparison of `pairs` pairs be decided, if its mean stayed where it is. The interval and the
/// noise both shrink with the root of the pairs: within the margin the interval has to fit between the mean and the margin, beyond it the
/// interval has to clear the margin, and interval and noise together have to fit below the mean.
pub fn pairs_needed(pairs: usize, log_ratio: &Estimate, margin: f64, noise: f64) -> Option<usize> {
    let (mean, half, margin) = (log_ratio.mean.abs(), log_ratio.half_width(), (1.0 + margin).ln());
    let shrink =
        if mean < margin { (margin - mean) / half } else { ((mean - margin) / half).min(mean / (half + noise)) };
    let needed = pairs as f64 / shrink.powi(2);
    (needed.is_finite() && needed < 1e6).then(|| (needed.ceil() as usize).max(pairs + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_truth_table() {
        let estimate = |low: f64, high: f64| Estimate { mean: (low + high) / 2.0, low, high };
        for (low, high, noise, verdict) in [
            (0.03, 0.05, 0.0, Verdict::Regressed),
            (0.03, 0.05, 0.04, Verdict::Inconclusive), // within what the machine does by itself
            (-0.05, -0.03, 0.0, Verdict::Improved),
            (-0.01, 0.01, 0.0, Verdict::Equivalent),
            (-0.01, 0.01, 0.5, Verdict::Equivalent),
            (0.005, 0.015, 0.0, Verdict::Equivalent), // real, and too small to matter
            (-0.01, 0.03, 0.0, Verdict::Inconclusive),
            (0.01, 0.03, 0.0, Verdict::Inconclusive),
            (f64::NEG_INFINITY, f64::INFINITY, 0.0, Verdict::Inconclusive),
        ] {
            assert_eq!(judge(&estimate(low, high), 0.02, noise), verdict, "{low} to {high}, noise {noise}");
        }
    }

    #[test]
    fn the_pairs_that_are_missing_grow_with_the_square() {
        let about = |mean: f64, half: f64| Estimate { mean, low: mean - half, high: mean + half };
        let bar = 1.02f64.ln();
        let near = |found: Option<usize>, truth: usize| found.is_some_and(|found| found.abs_diff(truth) <= 1);
        assert!(near(pairs_needed(10, &about(bar + 0.02, 0.04), 0.02, 0.0), 40));
        assert!(near(pairs_needed(10, &about(bar + 0.02, 0.02), 0.02, 0.0), 11));
        assert!(near(pairs_needed(10, &about(0.0, 2.0 * bar), 0.02, 0.0), 40));
        assert!(near(pairs_needed(10, &about(0.26, 0.27), 0.02, 0.76), 157), "the noise has to shrink, too");
        assert_eq!(pairs_needed(10, &about(0.26, 0.27), 0.02, f64::INFINITY), None);
        assert_eq!(pairs_needed(10, &about(bar, 0.04), 0.02, 0.0), None, "on the bar itself no number is enough");
        assert_eq!(pairs_needed(3, &about(0.0, f64::INFINITY), 0.02, 0.0), None);
    }
}
