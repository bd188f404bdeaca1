//! Verdicts on comparisons.

use crate::stats::Estimate;
use serde::{Deserialize, Serialize};

/// Verdict on a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole confidence interval lies below −max(margin, noise floor).
    Improved,
    /// The whole confidence interval lies within the equivalence margin.
    Equivalent,
    /// The confidence interval is too wide for a decision.
    Inconclusive,
    /// The whole confidence interval lies above max(margin, noise floor).
    Regressed,
    /// The session is unusable: the A/A control differs, or nothing could be compared.
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

/// Classifies a mean of ln(after / before), where less is better.
///
/// A difference is significant only if the whole interval exceeds both the equivalence margin and
/// the noise floor of the A/A control.
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

/// Estimates the pairs needed to decide an inconclusive comparison of `pairs` pairs, if its mean
/// stays. Interval and noise floor both shrink with the square root of the pairs. A mean within the
/// margin needs an interval that fits between mean and margin. A mean beyond it needs an interval
/// that clears the margin, and interval and noise floor together must be smaller than the mean.
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
            (0.03, 0.05, 0.04, Verdict::Inconclusive), // within the noise floor
            (-0.05, -0.03, 0.0, Verdict::Improved),
            (-0.01, 0.01, 0.0, Verdict::Equivalent),
            (-0.01, 0.01, 0.5, Verdict::Equivalent),
            (0.005, 0.015, 0.0, Verdict::Equivalent), // significant, but within the margin
            (-0.01, 0.03, 0.0, Verdict::Inconclusive),
            (0.01, 0.03, 0.0, Verdict::Inconclusive),
            (f64::NEG_INFINITY, f64::INFINITY, 0.0, Verdict::Inconclusive),
        ] {
            assert_eq!(judge(&estimate(low, high), 0.02, noise), verdict, "{low} to {high}, noise {noise}");
        }
    }

    #[test]
    fn the_pairs_needed_grow_with_the_square_of_the_interval() {
        let about = |mean: f64, half: f64| Estimate { mean, low: mean - half, high: mean + half };
        let bar = 1.02f64.ln();
        let near = |found: Option<usize>, truth: usize| found.is_some_and(|found| found.abs_diff(truth) <= 1);
        assert!(near(pairs_needed(10, &about(bar + 0.02, 0.04), 0.02, 0.0), 40));
        assert!(near(pairs_needed(10, &about(bar + 0.02, 0.02), 0.02, 0.0), 11));
        assert!(near(pairs_needed(10, &about(0.0, 2.0 * bar), 0.02, 0.0), 40));
        assert!(near(pairs_needed(10, &about(0.26, 0.27), 0.02, 0.76), 157), "the noise floor must shrink, too");
        assert_eq!(pairs_needed(10, &about(0.26, 0.27), 0.02, f64::INFINITY), None);
        assert_eq!(pairs_needed(10, &about(bar, 0.04), 0.02, 0.0), None, "a mean on the margin can never be decided");
        assert_eq!(pairs_needed(3, &about(0.0, f64::INFINITY), 0.02, 0.0), None);
    }
}
