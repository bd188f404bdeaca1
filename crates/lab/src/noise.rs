//! Is this machine fit to measure? The same small work, again and again, and how much its time varies.

use crate::environment::stolen;
use crate::stats;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// Runs of the small work.
    pub runs: usize,
    /// Seconds of one, in the middle.
    pub median_s: f64,
    /// The median distance from it, as a share.
    pub spread: f64,
    /// The slowest twentieth against the middle.
    pub slowest: f64,
    /// How far the means of neighbouring tenths of the session are apart, as a share: slow drift.
    pub drift: f64,
    /// The share of the time that a hypervisor took away meanwhile, where the system tells.
    pub stolen: Option<f64>,
    /// Pairs that a difference of 2 % would need.
    pub pairs_for_two_percent: usize,
}

impl Noise {
    /// In words.
    pub fn verdict(&self) -> &'static str {
        match self.spread.max(self.drift / 2.0) {
            x if x < 0.005 => "quiet: differences of 1 % can be seen",
            x if x < 0.02 => "fair: differences of 2 to 3 % can be seen, with patience",
            x if x < 0.05 => "noisy: only differences above 5 % can be seen",
            _ => "unfit: something else is running; measure later or elsewhere",
        }
    }
}

/// Measures for a while.
pub fn measure(length: Duration) -> Noise {
    let before = stolen();
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < length || times.len() < 20 {
        times.push(work());
    }
    let found = describe(&times);
    let after = stolen();
    // The counters are shares since the machine started; what grew meanwhile is what counts.
    let stolen = before.zip(after).map(|(before, after)| (after - before).max(0.0));
    Noise { stolen, ..found }
}

fn describe(times: &[f64]) -> Noise {
    let median = stats::median(times);
    let spread = stats::median_deviation(times) / median;
    let tenths: Vec<f64> = times.chunks(times.len().div_ceil(10)).map(stats::median).collect();
    let drift = tenths.windows(2).map(|pair| (pair[1] / pair[0]).ln().abs()).fold(0.0, f64::max);
    // A pair's logarithm varies by √2 of one process's; 1.48 makes a standard deviation of a median distance.
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

/// A few milliseconds of arithmetic that stay in the cache.
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
    use crate::stats::Random;

    #[test]
    fn quiet_and_noisy_machines_are_told_apart() {
        let session = |noise: f64, slope: f64| {
            let mut random = Random::new(1);
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
