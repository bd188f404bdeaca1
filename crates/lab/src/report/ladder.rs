//! A ladder's steps, and whether they add up to the total.

use super::format::change;
use crate::result::{Comparison, SessionResult};
use crate::suite::Metric;

/// The steps of a ladder on one workload, and the comparison of its last with its first rung.
pub(crate) struct Ladder<'r> {
    pub workload: &'r str,
    pub steps: Vec<&'r Comparison>,
    pub whole: &'r Comparison,
}

/// Returns the ladder of each workload that measured all steps.
pub(crate) fn ladders(result: &SessionResult) -> Vec<Ladder<'_>> {
    let rungs = &result.suite.ladder;
    let (Some(first), Some(last)) = (rungs.first(), rungs.last()) else { return Vec::new() };
    let of_workload = |workload: &'_ str| {
        let of = |before: &String, after: &String| {
            result.comparisons.iter().find(|c| {
                c.workload == workload && c.metric == Metric::Time && c.reference == *before && c.variant == *after
            })
        };
        let steps: Vec<&Comparison> = rungs.windows(2).map(|step| of(&step[0], &step[1])).collect::<Option<_>>()?;
        Some((steps, of(first, last)?))
    };
    let ladder = |workload| of_workload(workload).map(|(steps, whole)| Ladder { workload, steps, whole });
    result.suite.workloads.iter().filter_map(|workload| ladder(workload.id.as_str())).collect()
}

impl Ladder<'_> {
    /// Returns the sum of the steps' mean log-ratios.
    pub fn sum(&self) -> f64 {
        self.steps.iter().map(|step| step.log_ratio.mean).sum()
    }

    /// Says whether the sum of the steps agrees with the direct comparison, within their intervals.
    pub fn summary(&self) -> String {
        let all = self.steps.iter().chain([&self.whole]);
        let wide = all.map(|step| step.log_ratio.half_width().powi(2)).sum::<f64>().sqrt();
        let off = (self.sum() - self.whole.log_ratio.mean).abs();
        let (sum, whole) = (change(self.sum()), change(self.whole.log_ratio.mean));
        let agreement = if wide.is_finite() && off.is_finite() {
            let agree = if off <= wide { "agree" } else { "do not agree" };
            format!("they {agree} within ±{:.2} %", wide * 100.0)
        } else {
            "too few pairs to check that they agree".into()
        };
        format!("ladder on {}: the steps sum to {sum}, measured directly {whole}: {agreement}", self.workload)
    }
}

/// Returns one line per workload: whether the ladder's steps add up to its total.
pub fn ladder_summary(result: &SessionResult) -> String {
    ladders(result).iter().map(|ladder| ladder.summary() + "\n").collect()
}
