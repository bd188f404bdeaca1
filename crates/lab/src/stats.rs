//! Statistics of paired measurements, as pure functions.
//!
//! Each pair of processes gives one log-ratio; the lab reports their mean with a 95 % confidence
//! interval. No value is dropped: outliers and drift are reported alongside.

use crate::json_float;
use serde::{Deserialize, Serialize};

/// A seeded random number generator (splitmix64), so that schedules and bootstrap resamples are
/// reproducible.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a uniform integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * n as f64) as usize
    }

    /// Returns a standard normal number (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let uniform = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (a, b) = (uniform(self.next_u64()), uniform(self.next_u64()));
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// Shuffles a list.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

/// An estimate with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The point estimate.
    #[serde(with = "json_float")]
    pub mean: f64,
    /// Lower bound; −∞ with too few values.
    #[serde(with = "json_float")]
    pub low: f64,
    /// Upper bound; +∞ with too few values.
    #[serde(with = "json_float")]
    pub high: f64,
}

impl Estimate {
    /// Returns half the width of the interval.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Converts an estimate of a logarithm into one of the ratio.
    pub fn exp(&self) -> Estimate {
        Estimate { mean: self.mean.exp(), low: self.low.exp(), high: self.high.exp() }
    }

    /// Whether the interval excludes zero.
    pub fn is_significant(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Returns the mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the sample standard deviation.
pub fn standard_deviation(values: &[f64]) -> f64 {
    let center = mean(values);
    (values.iter().map(|x| (x - center).powi(2)).sum::<f64>() / (values.len() as f64 - 1.0)).sqrt()
}

/// Returns a quantile, linearly interpolated; NaN without values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return f64::NAN;
    }
    let position = share * (sorted.len() - 1) as f64;
    let (below, part) = (position.floor() as usize, position.fract());
    let above = sorted[(below + 1).min(sorted.len() - 1)];
    sorted[below] + part * (above - sorted[below])
}

/// Returns the median.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Returns the median absolute deviation (MAD).
pub fn median_absolute_deviation(values: &[f64]) -> f64 {
    let center = median(values);
    median(&values.iter().map(|x| (x - center).abs()).collect::<Vec<_>>())
}

/// Returns the mean of paired differences with its 95 % confidence interval: Student's t below ten
/// pairs, a seeded bootstrap from ten on.
pub fn confidence_interval(values: &[f64], seed: u64) -> Estimate {
    const RESAMPLES: usize = 10_000;
    let (n, center) = (values.len(), mean(values));
    if n < 2 {
        return Estimate { mean: center, low: f64::NEG_INFINITY, high: f64::INFINITY };
    }
    if n < 10 {
        let half = t_quantile(n - 1) * standard_deviation(values) / (n as f64).sqrt();
        return Estimate { mean: center, low: center - half, high: center + half };
    }
    // With few pairs the percentile bootstrap covers less than 95 %; the ratio of Student's t to
    // the normal quantile corrects that.
    let mut random = Rng::new(seed);
    let mut means: Vec<f64> =
        (0..RESAMPLES).map(|_| (0..n).map(|_| values[random.below(n)]).sum::<f64>() / n as f64).collect();
    means.sort_by(f64::total_cmp);
    let widen = t_quantile(n - 1) / 1.959_964 * (n as f64 / (n as f64 - 1.0)).sqrt();
    let (low, high) = (quantile(&means, 0.025), quantile(&means, 0.975));
    Estimate { mean: center, low: center - (center - low) * widen, high: center + (high - center) * widen }
}

/// Returns the 97.5 % quantile of Student's t distribution.
pub fn t_quantile(degrees_of_freedom: usize) -> f64 {
    const FEW: [f64; 10] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281];
    if let Some(value) = degrees_of_freedom.checked_sub(1).and_then(|i| FEW.get(i)) {
        return *value;
    }
    // Cornish–Fisher expansion about the normal quantile; error below 1e-3 from 11 degrees of
    // freedom on.
    let (z, v) = (1.959_964f64, degrees_of_freedom as f64);
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * v)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v.powi(3))
}

/// Counts outliers by Tukey's fences: values beyond 1.5 and beyond 3 interquartile ranges.
pub fn outliers(values: &[f64]) -> (usize, usize) {
    let (first, third) = (quantile(values, 0.25), quantile(values, 0.75));
    let beyond = |fences: f64| {
        let reach = fences * (third - first);
        values.iter().filter(|&&x| x < first - reach || x > third + reach).count()
    };
    (beyond(1.5), beyond(3.0))
}

/// Returns the slope of a linear fit against the index, with its 95 % confidence interval.
pub fn drift(values: &[f64]) -> Option<Estimate> {
    let n = values.len();
    if n < 4 {
        return None;
    }
    let rows: Vec<Vec<f64>> = (0..n).map(|i| vec![1.0, i as f64]).collect();
    let fit = least_squares(&rows, values)?;
    let degrees_of_freedom = n - 2;
    let noise = (fit.residuals.iter().map(|r| r * r).sum::<f64>() / degrees_of_freedom as f64).sqrt();
    let center = (n as f64 - 1.0) / 2.0;
    let spread = (0..n).map(|i| (i as f64 - center).powi(2)).sum::<f64>().sqrt();
    let half = t_quantile(degrees_of_freedom) * noise / spread;
    let slope = fit.coefficients[1];
    Some(Estimate { mean: slope, low: slope - half, high: slope + half })
}

/// A linear model fitted to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// One coefficient per column.
    pub coefficients: Vec<f64>,
    /// Residuals.
    pub residuals: Vec<f64>,
    /// Coefficient of determination (R²).
    pub r2: f64,
}

/// Fits `rows · coefficients ≈ values` by least squares; `None` if the rows do not determine the
/// coefficients.
pub fn least_squares(rows: &[Vec<f64>], values: &[f64]) -> Option<Fit> {
    let columns = rows.first()?.len();
    if rows.len() < columns {
        return None;
    }
    // Normal equations, solved by Gauss–Jordan elimination with partial pivoting after scaling the
    // columns.
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
    let center = mean(values);
    let total: f64 = values.iter().map(|v| (v - center).powi(2)).sum();
    let r2 = 1.0 - residuals.iter().map(|r| r * r).sum::<f64>() / total.max(f64::MIN_POSITIVE);
    Some(Fit { coefficients, residuals, r2 })
}

/// Fits with a 95 % confidence interval per coefficient, by a seeded bootstrap over the rows.
pub fn fit_with_intervals(rows: &[Vec<f64>], values: &[f64], seed: u64) -> Option<(Fit, Vec<Estimate>)> {
    const RESAMPLES: usize = 2_000;
    let fit = least_squares(rows, values)?;
    let mut random = Rng::new(seed);
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
    fn t_quantiles_match_the_published_tables() {
        for (degrees_of_freedom, truth) in
            [(1, 12.7062), (5, 2.5706), (10, 2.2281), (11, 2.2010), (20, 2.0860), (60, 2.0003)]
        {
            assert!(
                (t_quantile(degrees_of_freedom) - truth).abs() < 1e-3,
                "{degrees_of_freedom}: {}",
                t_quantile(degrees_of_freedom)
            );
        }
    }

    #[test]
    fn known_samples_have_known_intervals() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let estimate = confidence_interval(&values, 0);
        // 3 ± 2.7764 · 1.5811 / √5
        assert!((estimate.mean - 3.0).abs() < 1e-12 && (estimate.half_width() - 1.9632).abs() < 1e-3, "{estimate:?}");
        assert_eq!(confidence_interval(&[7.0], 0).high, f64::INFINITY, "one pair has no interval");
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), quantile(&[0.0, 10.0], 0.25)), (2.0, 2.5, 2.5));
        assert_eq!(median_absolute_deviation(&[1.0, 1.0, 2.0, 9.0]), 0.5);
    }

    #[test]
    fn confidence_intervals_cover_the_true_mean_in_95_percent() {
        for n in [5, 12, 30] {
            let mut random = Rng::new(n as u64);
            let held = (0..2000)
                .filter(|&seed| {
                    let values: Vec<f64> = (0..n).map(|_| 0.3 + random.normal()).collect();
                    let estimate = confidence_interval(&values, seed);
                    estimate.low <= 0.3 && 0.3 <= estimate.high
                })
                .count();
            assert!((0.93..0.97).contains(&(held as f64 / 2000.0)), "{n} pairs: {held} of 2000");
        }
    }

    #[test]
    fn a_line_is_fitted_and_a_flat_series_has_no_drift() {
        let rows: Vec<Vec<f64>> = (0..8).map(|i| vec![1.0, i as f64, (i * i) as f64 * 1e9]).collect();
        let values: Vec<f64> = rows.iter().map(|r| 5.0 + 0.25 * r[1] + 2e-9 * r[2]).collect();
        let fit = least_squares(&rows, &values).expect("a fit");
        for (ours, truth) in fit.coefficients.iter().zip([5.0, 0.25, 2e-9]) {
            assert!((ours / truth - 1.0).abs() < 1e-6, "{:?}", fit.coefficients);
        }
        assert!(fit.r2 > 0.999_999);
        assert_eq!(least_squares(&[vec![1.0, 2.0], vec![2.0, 4.0], vec![3.0, 6.0]], &[1.0, 2.0, 3.0]), None);
        let mut random = Rng::new(3);
        let flat: Vec<f64> = (0..40).map(|_| 10.0 + 0.1 * random.normal()).collect();
        assert!(!drift(&flat).expect("a slope").is_significant());
        let rising: Vec<f64> = flat.iter().enumerate().map(|(i, x)| x + 0.02 * i as f64).collect();
        assert!(drift(&rising).expect("a slope").is_significant());
    }

    #[test]
    fn fences_find_outliers() {
        let mut values: Vec<f64> = (0..20).map(|i| 1.0 + i as f64 * 0.01).collect();
        assert_eq!(outliers(&values), (0, 0));
        values.extend([1.45, 9.0]);
        assert_eq!(outliers(&values), (2, 1));
    }

    #[test]
    fn a_seed_repeats_its_shuffle_and_a_shuffle_is_a_permutation() {
        let mut list: Vec<usize> = (0..50).collect();
        Rng::new(9).shuffle(&mut list);
        let mut again: Vec<usize> = (0..50).collect();
        Rng::new(9).shuffle(&mut again);
        assert_eq!(list, again);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
