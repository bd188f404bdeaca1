//! Quantities of passes over time, as SVG areas.

use std::fmt::Write;

/// Points of an area, at most: more cannot be distinguished on a screen.
const MAX_POINTS: usize = 1200;

/// Maps seconds to horizontal positions.
#[derive(Clone, Copy)]
pub struct TimeAxis {
    pub start: f64,
    pub end: f64,
    pub left: f64,
    pub width: f64,
}

impl TimeAxis {
    pub fn x(&self, seconds: f64) -> f64 {
        self.left + self.width * ((seconds - self.start) / (self.end - self.start)).clamp(0.0, 1.0)
    }

    /// Round times for grid lines, in seconds after the start, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let length = self.end - self.start;
        let rough = length / 8.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let label = |t: f64| match step {
            step if step >= 1.0 => format!("{t:.0} s"),
            step if step >= 0.1 => format!("{t:.1} s"),
            step if step >= 1e-3 => format!("{:.0} ms", t * 1e3),
            _ => format!("{:.0} µs", t * 1e6),
        };
        (0..).map(|n| n as f64 * step).take_while(|t| *t <= length).map(|t| (self.start + t, label(t))).collect()
    }
}

/// One pass: start, end, and the values of the stacked areas.
pub struct Sample {
    pub start: f64,
    pub end: f64,
    pub values: Vec<f64>,
}

/// A chart of stacked areas.
pub struct Chart<'a> {
    pub title: &'a str,
    /// Class and name of each area, from the bottom.
    pub areas: &'a [(&'a str, &'a str)],
    pub samples: Vec<Sample>,
    /// Formats a value of the vertical axis.
    pub format: fn(f64) -> String,
}

/// Height of a chart's plot.
const HEIGHT: f64 = 64.0;
/// Height of a chart with its title.
pub const TOTAL_HEIGHT: f64 = HEIGHT + 42.0;

impl Chart<'_> {
    /// Draws the chart below `top`.
    pub fn draw(mut self, axis: &TimeAxis, top: f64, svg: &mut String) {
        self.samples = join(self.samples, axis);
        let total = |sample: &Sample| sample.values.iter().sum::<f64>();
        let most = self.samples.iter().map(total).fold(0.0, f64::max);
        let (bottom, scale) = (top + 24.0 + HEIGHT, HEIGHT / most.max(f64::MIN_POSITIVE));
        let right = axis.left + axis.width;
        let _ = write!(svg, r#"<text class="title" x="{:.0}" y="{:.1}">{}</text>"#, axis.left, top + 14.0, self.title);
        let _ = write!(
            svg,
            r#"<text class="tick end" x="{right:.0}" y="{:.1}">up to {}</text>"#,
            top + 14.0,
            (self.format)(most)
        );
        let _ = write!(
            svg,
            r#"<line class="base" x1="{:.1}" x2="{right:.1}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#,
            axis.left
        );
        for (index, (class, name)) in self.areas.iter().enumerate() {
            let below = |sample: &Sample| sample.values[..index].iter().sum::<f64>();
            let mut path = String::new();
            for sample in &self.samples {
                let (x1, x2) = (axis.x(sample.start), axis.x(sample.end));
                let (low, high) = (below(sample), below(sample) + sample.values[index]);
                if high > low {
                    let (y1, y2) = (bottom - low * scale, bottom - high * scale);
                    let _ = write!(path, "M{x1:.1} {y1:.1}V{y2:.1}H{x2:.1}V{y1:.1}Z");
                }
            }
            let _ = write!(svg, r#"<path class="{class}" d="{path}"><title>{name}</title></path>"#);
        }
    }
}

/// Joins samples that are too narrow to see: a bin has the values of its sample with the largest
/// total.
fn join(samples: Vec<Sample>, axis: &TimeAxis) -> Vec<Sample> {
    if samples.len() <= MAX_POINTS {
        return samples;
    }
    let width = (axis.end - axis.start) / MAX_POINTS as f64;
    let total = |sample: &Sample| sample.values.iter().sum::<f64>();
    let mut bins: Vec<Sample> = Vec::new();
    // Samples whose middles fall into the same of `MAX_POINTS` equal intervals share a bin.
    let interval = |sample: &Sample| ((0.5 * (sample.start + sample.end) - axis.start) / width) as usize;
    let mut last = None;
    for sample in samples {
        let same = last.replace(interval(&sample)) == Some(interval(&sample));
        match bins.last_mut() {
            Some(bin) if same => {
                bin.end = sample.end;
                if total(&sample) > total(bin) {
                    bin.values = sample.values;
                }
            }
            _ => bins.push(sample),
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_samples_are_joined_and_the_largest_of_a_bin_is_kept() {
        let axis = TimeAxis { start: 0.0, end: 100.0, left: 0.0, width: 1000.0 };
        let sample = |n: usize| {
            let start = n as f64 / 1000.0;
            Sample { start, end: start + 0.001, values: vec![if n == 77_777 { 9.0 } else { 1.0 }] }
        };
        let bins = join((0..100_000).map(sample).collect(), &axis);
        assert!(bins.len() <= MAX_POINTS + 1, "{}", bins.len());
        assert_eq!(bins.iter().filter(|bin| bin.values == [9.0]).count(), 1);
        assert!(bins.windows(2).all(|pair| pair[0].end <= pair[1].start + 1e-9));
    }

    #[test]
    fn ticks_are_round_and_inside() {
        for length in [2e-5, 0.003, 0.4, 7.0, 3600.0] {
            let axis = TimeAxis { start: 1.0, end: 1.0 + length, left: 0.0, width: 100.0 };
            let ticks = axis.ticks();
            assert!((4..=10).contains(&ticks.len()), "{length}: {ticks:?}");
            assert!(ticks.iter().all(|(t, _)| *t <= axis.end));
        }
    }
}
