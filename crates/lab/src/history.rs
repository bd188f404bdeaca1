//! Results over time: when did a number change for good?
//!
//! Each variant's median on each workload is a series. A step is where cutting the series in two pays: the distances of all values from the
//! median of their own part, plus a price for each cut, are made as small as they can be (Potts' problem with absolute
//! distances). Medians and absolute distances do not follow single outliers, and the price comes from the noise of the series itself,
//! so nothing is tried out and nothing is drawn at random.

use crate::builtin_suites::present_name;
use crate::environment::Environment;
use crate::result::SessionResult;
use crate::stats;
use crate::suite::Metric;
use serde::Serialize;

/// Values on either side that a step needs; fewer may be an outlier.
pub const LEAST: usize = 3;
/// Values that are looked at, the last ones: the search is quadratic.
const MOST: usize = 300;
/// The price of a cut is this many times the noise and the logarithm of the number of values: on noise alone, fewer than one series in
/// twenty is cut.
const PRICE: f64 = 3.0;
/// Noise below this share is not believed.
const LEAST_NOISE: f64 = 1e-4;
/// Steps smaller than this share are not reported, however certain.
pub const SMALLEST: f64 = 0.01;

/// One number of one variant over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The suite.
    pub suite: String,
    /// The workload.
    pub workload: String,
    /// The variant.
    pub variant: String,
    /// What it is.
    pub metric: Metric,
    /// Its values, oldest first.
    pub points: Vec<Point>,
    /// Where it changed for good.
    pub steps: Vec<Step>,
    /// The noise of one value, as a share.
    pub noise: f64,
}

/// A result's value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The result's name.
    pub name: String,
    /// When it was measured, seconds since 1970.
    pub began: u64,
    /// The median over its processes.
    pub value: f64,
}

/// A change for good.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The first point of the new level.
    pub at: usize,
    /// The median before, back to the step before.
    pub before: f64,
    /// The median after, up to the next step.
    pub after: f64,
}

impl Step {
    /// The logarithm of after over before.
    pub fn log_ratio(&self) -> f64 {
        (self.after / self.before).ln()
    }
}

/// The series of some results, by name. Results of different machines, builds of the toolchain or models are different series, since
/// nothing of the one says anything about the other.
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
                                steps: vec![],
                                noise: 0.0,
                            },
                        )),
                    }
                }
            }
        }
    }
    found.into_iter().map(|(_, series)| series.searched()).collect()
}

impl Series {
    fn searched(mut self) -> Series {
        self.points.drain(..self.points.len().saturating_sub(MOST));
        let values: Vec<f64> = self.points.iter().map(|point| point.value).collect();
        self.noise = noise(&logs(&values));
        self.steps = steps(&values);
        self
    }

    /// The level that a point belongs to.
    pub fn level(&self, at: usize) -> f64 {
        let before = self.steps.iter().rev().find(|step| step.at <= at).map(|step| step.after);
        let first = self.steps.first().map(|step| step.before);
        let values: Vec<f64> = self.points.iter().map(|point| point.value).collect();
        before.or(first).unwrap_or_else(|| stats::median(&values))
    }
}

fn logs(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect()
}

/// The standard deviation of one value, from the differences of neighbours, of which few are steps.
fn noise(logs: &[f64]) -> f64 {
    let differences: Vec<f64> = logs.windows(2).map(|two| two[1] - two[0]).collect();
    let found = 1.4826 * stats::median_deviation(&differences) / std::f64::consts::SQRT_2;
    if found.is_finite() { found.max(LEAST_NOISE) } else { LEAST_NOISE }
}

/// Where a series of positive values changes for good.
pub fn steps(values: &[f64]) -> Vec<Step> {
    let logs = logs(values);
    let cuts = cuts(&logs, PRICE * noise(&logs) * (logs.len() as f64).ln());
    let ends: Vec<usize> = [0].into_iter().chain(cuts).chain([values.len()]).collect();
    let levels: Vec<f64> = ends.windows(2).map(|part| stats::median(&values[part[0]..part[1]])).collect();
    let step = |index: usize| Step { at: ends[index], before: levels[index - 1], after: levels[index] };
    let found = (1..levels.len()).map(step);
    found.filter(|step| step.log_ratio().abs() >= SMALLEST).collect()
}

/// The cuts of the cheapest division into parts of [`LEAST`] values or more.
fn cuts(logs: &[f64], price: f64) -> Vec<usize> {
    let n = logs.len();
    // `cheapest[end]` is the cost of the best division of the first `end` values, and where its last part begins.
    let mut cheapest: Vec<(f64, usize)> = vec![(f64::INFINITY, 0); n + 1];
    cheapest[0] = (-price, 0);
    for begin in 0..n {
        if !cheapest[begin].0.is_finite() {
            continue;
        }
        let mut part: Vec<f64> = Vec::new();
        for end in begin + 1..=n {
            let value = logs[end - 1];
            let place = part.partition_point(|other| other.total_cmp(&value).is_lt());
            part.insert(place, value);
            if part.len() < LEAST {
                continue;
            }
            let middle = part[part.len() / 2];
            let cost = cheapest[begin].0 + price + part.iter().map(|x| (x - middle).abs()).sum::<f64>();
            if cost < cheapest[end].0 {
                cheapest[end] = (cost, begin);
            }
        }
    }
    let (mut found, mut end) = (Vec::new(), n);
    while end > 0 && cheapest[end].1 > 0 {
        end = cheapest[end].1;
        found.push(end);
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    fn simulated(n: usize, seed: u64, level: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut random = Random::new(seed);
        (0..n).map(|i| 0.1 * level(i) * (0.01 * random.normal()).exp()).collect()
    }

    #[test]
    fn noise_alone_is_seldom_cut_and_outliers_never() {
        for n in [12, 30, 80] {
            let cut = |values: &[f64]| {
                usize::from(!cuts(&logs(values), PRICE * noise(&logs(values)) * (n as f64).ln()).is_empty())
            };
            let quiet: usize = (0..100).map(|seed| cut(&simulated(n, seed, |_| 1.0))).sum();
            assert!(quiet <= 5, "{quiet} of 100 flat series of {n}");
            let wild = |seed: u64| {
                let mut values = simulated(n, seed, |_| 1.0);
                values[seed as usize % n] *= 1.6;
                values[(seed as usize * 7 + 3) % n] *= 0.6;
                values
            };
            let cut: usize = (0..100).map(|seed| steps(&wild(seed)).len().min(1)).sum();
            assert!(cut <= 5, "{cut} of 100 series of {n} with two outliers");
        }
    }

    #[test]
    fn steps_are_found_where_they_are() {
        let mut right = 0;
        for seed in 0..100 {
            let found = steps(&simulated(40, seed, |i| {
                if i < 12 {
                    1.0
                } else if i < 27 {
                    1.06
                } else {
                    0.98
                }
            }));
            right += usize::from(found.len() == 2 && found[0].at.abs_diff(12) <= 1 && found[1].at.abs_diff(27) <= 1);
        }
        assert!(right >= 95, "{right} of 100");
        let one = steps(&simulated(20, 5, |i| if i < 9 { 1.0 } else { 1.1 }));
        assert!(one.len() == 1 && (one[0].log_ratio() - 1.1f64.ln()).abs() < 0.02, "{one:?}");
    }

    #[test]
    fn series_that_are_too_short_or_strange_have_no_steps() {
        for values in [&[][..], &[1.0], &[1.0, 9.0, 1.0], &[1.0; 50], &[0.0; 10], &[f64::INFINITY; 9]] {
            assert_eq!(steps(values), [], "{values:?}");
        }
        // Exactly equal values, then others: certain, since there is no noise.
        assert_eq!(steps(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]).iter().map(|step| step.at).collect::<Vec<_>>(), [3]);
    }
}
