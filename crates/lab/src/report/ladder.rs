//! A ladder's steps and whether they add up.

use super::format::change;
use crate::result::{Comparison, SessionResult};
use crate::suite::Metric;

/// The steps of a ladder on one workload, and the last rung against the first.
pub(crate) struct Ladder<'r> {
    pub workload: &'r str,
    pub steps: Vec<&'r Comparison>,
    pub whole: &'r Comparison,
}

/// The ladders of a session, one for each workload that has all steps.
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
    /// The sum of the steps' mean logarithms.
    pub fn sum(&self) -> f64 {
        self.steps.iter().map(|step| step.log_ratio.mean).sum()
    }

    /// Whether the sum is the whole, within all intervals together.
    pub fn sentence(&self) -> String {
        let all = self.steps.iter().chain([&self.whole]);
        let wide = all.map(|step| step.log_ratio.half_width().powi(2)).sum::<f64>().sqrt();
        let off = (self.sum() - self.whole.log_ratio.mean).abs();
        let (sum, whole) = (change(self.sum()), change(self.whole.log_ratio.mean));
        let said = if wide.is_finite() && off.is_finite() {
            let agree = if off <= wide { "agree" } else { "do not agree" };
            format!("they {agree} within ±{:.2} %", wide * 100.0)
        } else {
            "too few pairs to tell whether they agree".into()
        };
        format!("ladder on {}: the steps make {sum}, the whole is {whole}: {said}", self.workload)
    }
}

/// Whether a ladder's steps add up to its whole, within their intervals: a line for each workload.
pub fn closure(result: &SessionResult) -> String {
    ladders(result).iter().map(|ladder| ladder.sentence() + "\n").collect()
}
