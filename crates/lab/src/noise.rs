//! `lab noise`: repeats a small fixed computation and measures how much its time varies.

use crate::environment::CpuTime;
use crate::stats;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Variability of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Number of repetitions.
    pub runs: usize,
    /// Median time in seconds.
    pub median_s: f64,
    /// Median absolute deviation, relative to the median.
    pub spread: f64,
    /// 95th percentile relative to the median, minus 1.
    pub slowest: f64,
    /// Largest relative change between the medians of neighboring tenths of the measurement: slow
    /// drift.
    pub drift: f64,
    /// Fraction of the CPU time of the measurement that the hypervisor took, if known.
    pub stolen: Option<f64>,
    /// Pairs needed to detect a difference of 2 %.
    pub pairs_for_two_percent: usize,
}

impl Noise {
    /// Describes what can be measured on this machine.
    pub fn verdict(&self) -> &'static str {
        match self.spread.max(self.drift / 2.0) {
            x if x < 0.005 => "quiet: differences of 1 % are detectable",
            x if x < 0.02 => "fair: differences of 2 to 3 % are detectable with many pairs",
            x if x < 0.05 => "noisy: only differences above 5 % are detectable",
            _ => "unusable: other processes are running; measure on an idle machine",
        }
    }
}

/// Measures for at least `length`.
pub fn measure(length: Duration) -> Noise {
    let before = CpuTime::now();
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < length || times.len() < 20 {
        times.push(work());
    }
    let found = describe(&times);
    let stolen = before.zip(CpuTime::now()).map(|(before, after)| after.stolen_share_since(before));
    Noise { stolen, ..found }
}

fn describe(times: &[f64]) -> Noise {
    let median = stats::median(times);
    let spread = stats::median_absolute_deviation(times) / median;
    let tenths: Vec<f64> = times.chunks(times.len().div_ceil(10)).map(stats::median).collect();
    let drift = tenths.windows(2).map(|pair| (pair[1] / pair[0]).ln().abs()).fold(0.0, f64::max);
    // The log-ratio of a pair has √2 times the deviation of one process; 1.48 converts a MAD into a
    // standard deviation.
    let deviation = 1.48 * spread * std::f64::consts::SQRT_2;
    let pairs = (1.96 * deviation / 0.01).powi(2).ceil() as usize;
    Noise {
        runs: times.len(),
        median_s: median,
        spread,
        slowest: stats::quantile(times, 0.95) / median - 1.0,
        drift,
        stolen: None,
        pairs_for_two_percent: pairs.max(4),
    }
}

/// Runs arithmetic on an array of 16 KiB, which stays in the cache; returns the seconds.
fn work() -> f64 {
    let started = Instant::now();
    let mut values = [1.0f32; 4096];
    for round in 0..600 {
        let by = 1.0 + (round % 7) as f32 * 1e-7;
        values.iter_mut().for_each(|x| *x = *x * by + 1e-9);
    }
    std::hint::black_box(&values);
    started.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    #[test]
    fn quiet_noisy_and_drifting_machines_are_distinguished() {
        let session = |noise: f64, slope: f64| {
            let mut random = Rng::new(1);
            (0..400).map(|i| 0.01 * (1.0 + noise * random.normal() + slope * i as f64 / 400.0)).collect::<Vec<f64>>()
        };
        let quiet = describe(&session(0.002, 0.0));
        assert!(quiet.verdict().starts_with("quiet") && quiet.pairs_for_two_percent == 4, "{quiet:?}");
        let noisy = describe(&session(0.06, 0.0));
        assert!(noisy.verdict().starts_with("noisy") && noisy.pairs_for_two_percent > 100, "{noisy:?}");
        let drifting = describe(&session(0.002, 2.0));
        assert!(drifting.drift > 0.1 && !drifting.verdict().starts_with("quiet"), "{drifting:?}");
    }
}
