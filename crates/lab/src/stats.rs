//! The statistics of paired measurements, as pure functions of their numbers.
//!
//! A pair of processes gives one logarithm of a ratio; its mean, with an interval, is what the lab reports. Nothing is dropped:
//! outliers and drift are reported beside it.

use crate::number;
use serde::{Deserialize, Serialize};

/// A small seeded generator (splitmix64), so that schedules and resamples can be repeated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator for a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.bits() >> 11) as f64 / (1u64 << 53) as f64 * n as f64) as usize
    }

    /// A number from the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let uniform = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (a, b) = (uniform(self.bits()), uniform(self.bits()));
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Puts a list into random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The middle.
    #[serde(with = "number")]
    pub mean: f64,
    /// The lower end; minus infinity where there are too few values for one.
    #[serde(with = "number")]
    pub low: f64,
    /// The upper end; infinity where there are too few values for one.
    #[serde(with = "number")]
    pub high: f64,
}

impl Estimate {
    /// Half the width of the interval.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// The same as ratios, of logarithms.
    pub fn exp(&self) -> Estimate {
        Estimate { mean: self.mean.exp(), low: self.low.exp(), high: self.high.exp() }
    }

    /// Whether the interval leaves zero out.
    pub fn is_significant(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// The mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample.
pub fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    (values.iter().map(|x| (x - middle).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)).sqrt()
}

/// The value below which a share of the values lies, interpolated.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return f64::NAN;
    }
    let place = share * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = sorted[(below + 1).min(sorted.len() - 1)];
    sorted[below] + part * (above - sorted[below])
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The median distance from the median.
pub fn median_deviation(values: &[f64]) -> f64 {
    let middle = median(values);
    median(&values.iter().map(|x| (x - middle).abs()).collect::<Vec<_>>())
}

/// The mean of paired differences with its 95 % interval: by Student's t below ten pairs, by a seeded bootstrap above.
pub fn interval(values: &[f64], seed: u64) -> Estimate {
    const RESAMPLES: usize = 10_000;
    let (n, middle) = (values.len(), mean(values));
    if n < 2 {
        return Estimate { mean: middle, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    if n < 10 {
        let half = t_quantile(n - 1) * deviation(values) / (n as f64).sqrt();
        return Estimate { mean: middle, low: middle - half, high: middle + half };
    }
    // The bootstrap's intervals are a little short of 95 % for few pairs; Student's factor makes them whole again.
    let mut random = Random::new(seed);
    let mut means: Vec<f64> =
        (0..RESAMPLES).map(|_| (0..n).map(|_| values[random.below(n)]).sum::<f64>() / n as f64).collect();
    means.sort_by(f64::total_cmp);
    let widen = t_quantile(n - 1) / 1.959_964 * (n as f64 / (n as f64 - 1.0)).sqrt();
    let (low, high) = (quantile(&means, 0.025), quantile(&means, 0.975));
    Estimate { mean: middle, low: middle - (middle - low) * widen, high: middle + (high - middle) * widen }
}

/// The 97.5 % quantile of Student's distribution.
pub fn t_quantile(freedom: usize) -> f64 {
    const FEW: [f64; 10] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281];
    if let Some(value) = freedom.checked_sub(1).and_then(|i| FEW.get(i)) {
        return *value;
    }
    // Cornish and Fisher's expansion about the normal quantile; off by less than 1e-3 from eleven on.
    let (z, v) = (1.959_964f64, freedom as f64);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
}

/// How many values lie outside Tukey's fences: beyond 1.5 and beyond 3 times the distance of the quartiles.
pub fn outliers(values: &[f64]) -> (usize, usize) {
    let (first, third) = (quantile(values, 0.25), quantile(values, 0.75));
    let beyond = |fences: f64| {
        let reach = fences * (third - first);
        values.iter().filter(|&&x| x < first - reach || x > third + reach).count()
    };
    (beyond(1.5), beyond(3.0))
}

/// The slope of values by their order, with its 95 % interval.
pub fn drift(values: &[f64]) -> Option<Estimate> {
    let n = values.len();
    if n < 4 {
        return None;
    }
    let rows: Vec<Vec<f64>> = (0..n).map(|i| vec![1.0, i as f64]).collect();
    let fit = least_squares(&rows, values)?;
    let freedom = n - 2;
    let noise = (fit.residuals.iter().map(|r| r * r).sum::<f64>() / freedom as f64).sqrt();
    let middle = (n as f64 - 1.0) / 2.0;
    let spread = (0..n).map(|i| (i as f64 - middle).powi(2)).sum::<f64>().sqrt();
    let half = t_quantile(freedom) * noise / spread;
    let slope = fit.coefficients[1];
    Some(Estimate { mean: slope, low: slope - half, high: slope + half })
}

/// A linear model fitted to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// One for each column.
    pub coefficients: Vec<f64>,
    /// What is left of each value.
    pub residuals: Vec<f64>,
    /// The share of the variance that the model explains.
    pub r2: f64,
}

/// The coefficients that bring `rows · coefficients` nearest to `values`; none where the rows do not determine them.
pub fn least_squares(rows: &[Vec<f64>], values: &[f64]) -> Option<Fit> {
    let columns = rows.first()?.len();
    if rows.len() < columns {
        return None;
    }
    // The normal equations, by Gauss and Jordan with the largest pivot; columns are brought to one size first.
    let sizes: Vec<f64> =
        (0..columns).map(|c| rows.iter().map(|r| r[c].abs()).fold(0.0, f64::max).max(f64::MIN_POSITIVE)).collect();
    let mut system: Vec<Vec<f64>> = (0..columns)
        .map(|a| {
            let product = |f: &dyn Fn(usize) -> f64| (0..rows.len()).map(|i| rows[i][a] / sizes[a] * f(i)).sum::<f64>();
            let mut line: Vec<f64> = (0..columns).map(|b| product(&|i| rows[i][b] / sizes[b])).collect();
            line.push(product(&|i| values[i]));
            line
        })
        .collect();
    for column in 0..columns {
        let pivot = (column..columns).max_by(|&a, &b| system[a][column].abs().total_cmp(&system[b][column].abs()))?;
        system.swap(column, pivot);
        if system[column][column].abs() < 1e-12 {
            return None;
        }
        let lead = system[column].clone();
        for (row, line) in system.iter_mut().enumerate().filter(|(row, _)| *row != column) {
            let by = line[column] / lead[column];
            let _ = row;
            line.iter_mut().zip(&lead).for_each(|(x, l)| *x -= by * l);
        }
    }
    let coefficients: Vec<f64> = (0..columns).map(|c| system[c][columns] / system[c][c] / sizes[c]).collect();
    let residuals: Vec<f64> = rows
        .iter()
        .zip(values)
        .map(|(row, value)| value - row.iter().zip(&coefficients).map(|(x, c)| x * c).sum::<f64>())
        .collect();
    let middle = mean(values);
    let total: f64 = values.iter().map(|v| (v - middle).powi(2)).sum();
    let r2 = 1.0 - residuals.iter().map(|r| r * r).sum::<f64>() / total.max(f64::MIN_POSITIVE);
    Some(Fit { coefficients, residuals, r2 })
}

/// A fit with a 95 % interval for each coefficient, by a seeded bootstrap over the rows.
pub fn fit_with_intervals(rows: &[Vec<f64>], values: &[f64], seed: u64) -> Option<(Fit, Vec<Estimate>)> {
    const RESAMPLES: usize = 2_000;
    let fit = least_squares(rows, values)?;
    let mut random = Random::new(seed);
    let mut found: Vec<Vec<f64>> = vec![Vec::new(); fit.coefficients.len()];
    for _ in 0..RESAMPLES {
        let chosen: Vec<usize> = (0..rows.len()).map(|_| random.below(rows.len())).collect();
        let again: Vec<Vec<f64>> = chosen.iter().map(|&i| rows[i].clone()).collect();
        let times: Vec<f64> = chosen.iter().map(|&i| values[i]).collect();
        if let Some(fit) = least_squares(&again, &times) {
            found.iter_mut().zip(fit.coefficients).for_each(|(list, c)| list.push(c));
        }
    }
    let estimate =
        |(list, &mean): (&Vec<f64>, &f64)| Estimate { mean, low: quantile(list, 0.025), high: quantile(list, 0.975) };
    let intervals = found.iter().zip(&fit.coefficients).map(estimate).collect();
    Some((fit, intervals))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_factors_are_those_of_the_tables() {
        for (freedom, truth) in [(1, 12.7062), (5, 2.5706), (10, 2.2281), (11, 2.2010), (20, 2.0860), (60, 2.0003)] {
            assert!((t_quantile(freedom) - truth).abs() < 1e-3, "{freedom}: {}", t_quantile(freedom));
        }
    }

    #[test]
    fn known_samples_have_known_intervals() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let estimate = interval(&values, 0);
        // 3 ± 2.7764 · 1.5811 / √5
        assert!((estimate.mean - 3.0).abs() < 1e-12 && (estimate.half_width() - 1.9632).abs() < 1e-3, "{estimate:?}");
        assert_eq!(interval(&[7.0], 0).high, f64::INFINITY, "one pair says nothing about its spread");
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), quantile(&[0.0, 10.0], 0.25)), (2.0, 2.5, 2.5));
        assert_eq!(median_deviation(&[1.0, 1.0, 2.0, 9.0]), 0.5);
    }

    #[test]
    fn intervals_hold_the_truth_nineteen_times_in_twenty() {
        for n in [5, 12, 30] {
            let mut random = Random::new(n as u64);
            let held = (0..2000)
                .filter(|&seed| {
                    let values: Vec<f64> = (0..n).map(|_| 0.3 + random.normal()).collect();
                    let estimate = interval(&values, seed);
                    estimate.low <= 0.3 && 0.3 <= estimate.high
                })
                .count();
            assert!((0.93..0.97).contains(&(held as f64 / 2000.0)), "{n} pairs: {held} of 2000");
        }
    }

    #[test]
    fn a_line_is_found_again_and_a_flat_one_has_no_drift() {
        let rows: Vec<Vec<f64>> = (0..8).map(|i| vec![1.0, i as f64, (i * i) as f64 * 1e9]).collect();
        let values: Vec<f64> = rows.iter().map(|r| 5.0 + 0.25 * r[1] + 2e-9 * r[2]).collect();
        let fit = least_squares(&rows, &values).expect("a fit");
        for (ours, truth) in fit.coefficients.iter().zip([5.0, 0.25, 2e-9]) {
            assert!((ours / truth - 1.0).abs() < 1e-6, "{:?}", fit.coefficients);
        }
        assert!(fit.r2 > 0.999_999);
        assert_eq!(least_squares(&[vec![1.0, 2.0], vec![2.0, 4.0], vec![3.0, 6.0]], &[1.0, 2.0, 3.0]), None);
        let mut random = Random::new(3);
        let flat: Vec<f64> = (0..40).map(|_| 10.0 + 0.1 * random.normal()).collect();
        assert!(!drift(&flat).expect("a slope").is_significant());
        let rising: Vec<f64> = flat.iter().enumerate().map(|(i, x)| x + 0.02 * i as f64).collect();
        assert!(drift(&rising).expect("a slope").is_significant());
    }

    #[test]
    fn fences_find_what_lies_far_out() {
        let mut values: Vec<f64> = (0..20).map(|i| 1.0 + i as f64 * 0.01).collect();
        assert_eq!(outliers(&values), (0, 0));
        values.extend([1.45, 9.0]);
        assert_eq!(outliers(&values), (2, 1));
    }

    #[test]
    fn a_seed_repeats_itself_and_a_shuffle_keeps_everything() {
        let mut list: Vec<usize> = (0..50).collect();
        Random::new(9).shuffle(&mut list);
        let mut again: Vec<usize> = (0..50).collect();
        Random::new(9).shuffle(&mut again);
        assert_eq!(list, again);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
