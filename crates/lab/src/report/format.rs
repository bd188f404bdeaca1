//! Formats numbers for people. NaN and infinities are never printed as such.

use crate::result::Comparison;
use crate::stats::Estimate;
use crate::suite::Metric;

/// From here on values are printed in scientific notation.
const HUGE: f64 = 1e9;

/// Formats a value of a metric with its unit.
pub fn quantity(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Time | Metric::Load => seconds(value),
        Metric::Peak => bytes(value),
    }
}

/// Formats seconds in a suitable unit.
pub(crate) fn seconds(value: f64) -> String {
    match value.abs() {
        x if !x.is_finite() => "—".into(),
        x if x < 1e-3 => format!("{:.1} µs", value * 1e6),
        x if x < 1.0 => format!("{:.2} ms", value * 1e3),
        x if x >= HUGE => format!("{value:.1e} s"),
        _ => format!("{value:.2} s"),
    }
}

/// Formats bytes in a suitable unit.
pub(crate) fn bytes(value: f64) -> String {
    match value.abs() {
        x if !x.is_finite() => "—".into(),
        x if x < 1e3 => format!("{value:.0} B"),
        x if x < 1e6 => format!("{:.1} kB", value / 1e3),
        x if x < 1e7 => format!("{:.1} MB", value / 1e6),
        x if x < 1e10 => format!("{:.0} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// Formats a ratio: `×1.083`, with fewer decimals for large ones.
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        x if !x.is_finite() => "—".into(),
        x if x >= HUGE => format!("×{x:.1e}"),
        x if x >= 100.0 => format!("×{x:.1}"),
        x if x >= 10.0 => format!("×{x:.2}"),
        x => format!("×{x:.3}"),
    }
}

/// Formats the bounds of an interval of ratios, given as logarithms: `1.060 to 1.107`, or `no
/// interval`.
pub(crate) fn ends(log_ratio: &Estimate) -> String {
    let ratio = log_ratio.exp();
    if !log_ratio.low.is_finite() || !log_ratio.high.is_finite() {
        return "no interval".into();
    }
    let end = |x: f64| times(x).trim_start_matches('×').to_string();
    format!("{} to {}", end(ratio.low), end(ratio.high))
}

/// Formats a ratio with its interval.
pub(crate) fn ratio(log_ratio: &Estimate) -> String {
    format!("{} ({})", times(log_ratio.mean.exp()), ends(log_ratio))
}

/// Formats a log-ratio as a signed change in percent.
pub(crate) fn change(log: f64) -> String {
    let percent = (log.exp() - 1.0) * 100.0;
    match percent.abs() {
        x if !x.is_finite() => "—".into(),
        x if x >= HUGE => format!("{percent:+.1e} %"),
        x if x >= 100.0 => format!("{percent:+.0} %"),
        x if x >= 10.0 => format!("{percent:+.1} %"),
        _ => format!("{percent:+.2} %"),
    }
}

/// Formats a half-width of log-ratios: `±1.2 %`.
pub(crate) fn noise(half_width: f64) -> String {
    let percent = half_width.exp_m1() * 100.0;
    match percent.abs() {
        x if !x.is_finite() => "—".into(),
        x if x >= HUGE => format!("±{percent:.1e} %"),
        _ => format!("±{percent:.2} %"),
    }
}

/// Formats a fraction in percent.
pub(crate) fn share(value: f64) -> String {
    match value.abs() * 100.0 {
        x if !x.is_finite() => "—".into(),
        x if x >= HUGE => format!("{:.1e} %", value * 100.0),
        _ => format!("{:.1} %", value * 100.0),
    }
}

/// Formats the largest difference from the oracle.
pub(crate) fn difference(max_abs: f32) -> String {
    match max_abs {
        x if x.is_nan() => "non-finite".into(),
        x if x.is_infinite() => "non-finite".into(),
        0.0 => "0".into(),
        x => format!("{x:.1e}"),
    }
}

/// Formats the two sides of a comparison.
pub(crate) fn sides(comparison: &Comparison) -> String {
    if comparison.variant == comparison.reference {
        return format!("{} / itself", comparison.variant);
    }
    format!("{} / {}", comparison.variant, comparison.reference)
}

/// Formats Unix seconds as a date and time in UTC.
pub(crate) fn date(seconds: u64) -> String {
    // Days since 1 March 0000, so that leap days come last in a year; 400 years have 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (era * 400 + year, month + 3) } else { (era * 400 + year + 1, month - 9) };
    let clock = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", clock / 3600, clock / 60 % 60, clock % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_their_values_and_infinities_are_not_printed() {
        assert_eq!(
            (seconds(4.2e-5), seconds(0.0123), seconds(2.5)),
            ("42.0 µs".into(), "12.30 ms".into(), "2.50 s".into())
        );
        assert_eq!((bytes(512e6), bytes(12.5e9), bytes(1500.0)), ("512 MB".into(), "12.50 GB".into(), "1.5 kB".into()));
        assert_eq!((times(1.0834), times(23.44), times(f64::NAN)), ("×1.083".into(), "×23.44".into(), "—".into()));
        let one = Estimate { mean: 0.0, low: f64::NEG_INFINITY, high: f64::INFINITY };
        assert_eq!(ratio(&one), "×1.000 (no interval)");
        assert_eq!((change(0.0), change(f64::INFINITY), noise(f64::NAN)), ("+0.00 %".into(), "—".into(), "—".into()));
    }

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_735_689_600), "2025-01-01 00:00:00 UTC");
    }
}
