//! Results over time: change-point detection.
//!
//! Each variant's median on each workload is a series. The change points minimize the absolute
//! deviations of all values from the median of their segment, plus a penalty per change point (the
//! L1 Potts problem, solved exactly by dynamic programming). Medians and absolute deviations are
//! robust to single outliers. The penalty is derived from the noise of the series, so there are no
//! parameters to tune and no random numbers.

use crate::builtin_suites::present_name;
use crate::environment::Environment;
use crate::result::SessionResult;
use crate::stats;
use crate::suite::Metric;
use serde::Serialize;

/// Minimum length of a segment; shorter ones may be outliers.
pub const MIN_SEGMENT: usize = 3;
/// Maximum length of a series, counted from its end: the search is quadratic.
const MAX_POINTS: usize = 300;
/// The penalty of a change point is this × noise × ln(number of values). On noise alone, fewer than
/// one series in twenty is split.
const PENALTY: f64 = 3.0;
/// Lower bound of the noise estimate.
const MIN_NOISE: f64 = 1e-4;
/// Relative changes smaller than this are not reported, however certain.
pub const MIN_CHANGE: f64 = 0.01;

/// A metric of one variant on one workload over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The suite.
    pub suite: String,
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// The metric.
    pub metric: Metric,
    /// The values, oldest first.
    pub points: Vec<Point>,
    /// Where the level changed.
    #[serde(rename = "steps")]
    pub change_points: Vec<ChangePoint>,
    /// Relative standard deviation of one value.
    pub noise: f64,
}

/// The value of one result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The result's name.
    pub name: String,
    /// Start of the session, Unix seconds.
    pub began: u64,
    /// Median over its processes.
    pub value: f64,
}

/// A lasting change of level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ChangePoint {
    /// Index of the first point of the new level.
    pub at: usize,
    /// Median of the segment before.
    pub before: f64,
    /// Median of the segment after.
    pub after: f64,
}

impl ChangePoint {
    /// Returns ln(after / before).
    pub fn log_ratio(&self) -> f64 {
        (self.after / self.before).ln()
    }
}

/// Groups named results into series. Results of different machines, builds or models form different
/// series, because they are not comparable.
pub fn series(results: &[(String, SessionResult)]) -> Vec<Series> {
    let mut sorted: Vec<&(String, SessionResult)> = results.iter().collect();
    sorted.sort_by(|a, b| (a.1.session.began, &a.0).cmp(&(b.1.session.began, &b.0)));
    let mut found: Vec<(&Environment, Series)> = Vec::new();
    for (name, result) in sorted {
        for workload in &result.suite.workloads {
            for variant in result.suite.participants(workload) {
                for &metric in &workload.metrics {
                    let runs = result.runs.iter().filter(|r| r.workload == workload.id && r.variant == variant.id);
                    let values: Vec<f64> = runs.filter_map(|run| run.value(metric)).collect();
                    if values.is_empty() {
                        continue;
                    }
                    let (began, value) = (result.session.began, stats::median(&values));
                    let point = Point { name: name.clone(), began, value };
                    let same = |(environment, series): &&mut (&Environment, Series)| {
                        (series.suite.as_str(), &series.workload, &series.variant, series.metric)
                            == (present_name(&result.suite.name), &workload.id, &variant.id, metric)
                            && environment.hard == result.environment.hard
                    };
                    match found.iter_mut().find(same) {
                        Some((_, series)) => series.points.push(point),
                        None => found.push((
                            &result.environment,
                            Series {
                                suite: present_name(&result.suite.name).into(),
                                workload: workload.id.clone(),
                                variant: variant.id.clone(),
                                metric,
                                points: vec![point],
                                change_points: vec![],
                                noise: 0.0,
                            },
                        )),
                    }
                }
            }
        }
    }
    found.into_iter().map(|(_, series)| series.with_change_points()).collect()
}

impl Series {
    fn with_change_points(mut self) -> Series {
        self.points.drain(..self.points.len().saturating_sub(MAX_POINTS));
        let values: Vec<f64> = self.points.iter().map(|point| point.value).collect();
        self.noise = noise(&logs(&values));
        self.change_points = change_points(&values);
        self
    }

    /// Returns the median of the segment that contains a point.
    pub fn level(&self, at: usize) -> f64 {
        let before = self
            .change_points
            .iter()
            .rev()
            .find(|change_point| change_point.at <= at)
            .map(|change_point| change_point.after);
        let first = self.change_points.first().map(|change_point| change_point.before);
        let values: Vec<f64> = self.points.iter().map(|point| point.value).collect();
        before.or(first).unwrap_or_else(|| stats::median(&values))
    }
}

fn logs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect()
}

/// Estimates the standard deviation of one value from the differences of neighbors, few of which
/// span a change point.
fn noise(logs: &[f64]) -> f64 {
    let differences: Vec<f64> = logs.windows(2).map(|two| two[1] - two[0]).collect();
    let found = 1.4826 * stats::median_absolute_deviation(&differences) / std::f64::consts::SQRT_2;
    if found.is_finite() { found.max(MIN_NOISE) } else { MIN_NOISE }
}

/// Finds the change points of a series of positive values.
pub fn change_points(values: &[f64]) -> Vec<ChangePoint> {
    let logs = logs(values);
    let starts = segment_starts(&logs, PENALTY * noise(&logs) * (logs.len() as f64).ln());
    let ends: Vec<usize> = [0].into_iter().chain(starts).chain([values.len()]).collect();
    let levels: Vec<f64> = ends.windows(2).map(|segment| stats::median(&values[segment[0]..segment[1]])).collect();
    let change_point = |index: usize| ChangePoint { at: ends[index], before: levels[index - 1], after: levels[index] };
    let found = (1..levels.len()).map(change_point);
    found.filter(|change_point| change_point.log_ratio().abs() >= MIN_CHANGE).collect()
}

/// Returns the starts of all segments but the first in the optimal segmentation, with segments of
/// at least [`MIN_SEGMENT`] values.
fn segment_starts(logs: &[f64], penalty: f64) -> Vec<usize> {
    let n = logs.len();
    // `best[end]`: the minimum cost of segmenting the first `end` values, and where the last
    // segment starts.
    let mut best: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); n + 1];
    best[0] = (-penalty, 0);
    for begin in 0..n {
        if !best[begin].0.is_finite() {
            continue;
        }
        let mut segment: Vec<f64> = Vec::new();
        for end in begin + 1..=n {
            let value = logs[end - 1];
            let index = segment.partition_point(|other| other.total_cmp(&value).is_lt());
            segment.insert(index, value);
            if segment.len() < MIN_SEGMENT {
                continue;
            }
            let middle = segment[segment.len() / 2];
            let cost = best[begin].0 + penalty + segment.iter().map(|x| (x - middle).abs()).sum::<f64>();
            if cost < best[end].0 {
                best[end] = (cost, begin);
            }
        }
    }
    let (mut found, mut end) = (Vec::new(), n);
    while end > 0 && best[end].1 > 0 {
        end = best[end].1;
        found.push(end);
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    fn simulated(n: usize, seed: u64, level: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut random = Rng::new(seed);
        (0..n).map(|i| 0.1 * level(i) * (0.01 * random.normal()).exp()).collect()
    }

    #[test]
    fn flat_series_and_outliers_seldom_have_change_points() {
        for n in [12, 30, 80] {
            let cut = |values: &[f64]| {
                usize::from(!segment_starts(&logs(values), PENALTY * noise(&logs(values)) * (n as f64).ln()).is_empty())
            };
            let quiet: usize = (0..100).map(|seed| cut(&simulated(n, seed, |_| 1.0))).sum();
            assert!(quiet <= 5, "{quiet} of 100 flat series of {n}");
            let wild = |seed: u64| {
                let mut values = simulated(n, seed, |_| 1.0);
                values[seed as usize % n] *= 1.6;
                values[(seed as usize * 7 + 3) % n] *= 0.6;
                values
            };
            let cut: usize = (0..100).map(|seed| change_points(&wild(seed)).len().min(1)).sum();
            assert!(cut <= 5, "{cut} of 100 series of {n} with two outliers");
        }
    }

    #[test]
    fn change_points_are_found_at_the_right_index() {
        let mut correct = 0;
        for seed in 0..100 {
            let found = change_points(&simulated(40, seed, |i| {
                if i < 12 {
                    1.0
                } else if i < 27 {
                    1.06
                } else {
                    0.98
                }
            }));
            correct += usize::from(found.len() == 2 && found[0].at.abs_diff(12) <= 1 && found[1].at.abs_diff(27) <= 1);
        }
        assert!(correct >= 95, "{correct} of 100");
        let one = change_points(&simulated(20, 5, |i| if i < 9 { 1.0 } else { 1.1 }));
        assert!(one.len() == 1 && (one[0].log_ratio() - 1.1f64.ln()).abs() < 0.02, "{one:?}");
    }

    #[test]
    fn short_or_degenerate_series_have_no_change_points() {
        for values in [&[][..], &[1.0], &[1.0, 9.0, 1.0], &[1.0; 50], &[0.0; 10], &[f64::INFINITY; 9]] {
            assert_eq!(change_points(values), [], "{values:?}");
        }
        // Without noise, a single change is certain.
        assert_eq!(
            change_points(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
                .iter()
                .map(|change_point| change_point.at)
                .collect::<Vec<_>>(),
            [3]
        );
    }
}
