//! Building blocks of plots: escaped text, axes, rows and marks.
//!
//! Horizontal positions are percentages and vertical ones pixels, so that a plot fits any screen
//! width while its text keeps its size. Every position comes from an [`Axis`], which maps any
//! value, including NaN and infinity, into the plot.

pub(crate) use pellucid_analysis::html::escape_text as escape;

/// Capitalizes the first letter.
pub(crate) fn capitalize(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Transformation of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    Log,
    /// Symmetric log: linear within this distance of zero, logarithmic beyond.
    SymLog(f64),
}

/// Maps values to positions.
pub(crate) struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
    ticks: Vec<(f64, String)>,
}

/// Margin at either side, in percent of the width, so that marks are not clipped.
const EDGE_PERCENT: f64 = 2.0;
/// Minimum distance of labels, in percent of the width; closer ones would overlap on a phone.
const MIN_LABEL_DISTANCE: f64 = 12.0;

impl Axis {
    /// Covers the finite values with a small margin; logarithmic if they differ widely.
    pub fn of(values: impl IntoIterator<Item = f64>, label: fn(f64, f64) -> String) -> Axis {
        let (low, high) = ends(values);
        if low > 0.0 && high / low > 4.0 {
            let ticks = (-15..16).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
            let ticks =
                ticks.filter(|tick| (low..=high).contains(tick)).map(|tick| (tick, label(tick, tick))).collect();
            return Axis { low: low / 1.05, high: high * 1.05, scale: Scale::Log, ticks }.without_overlaps();
        }
        let air = (high - low) * 0.04;
        Axis::linear(low - air, high + air, label)
    }

    /// Covers zero to the largest value.
    pub fn from_zero(values: impl IntoIterator<Item = f64>, label: fn(f64, f64) -> String) -> Axis {
        let (_, high) = ends(values);
        Axis::linear(0.0, if high > 0.0 { high * 1.03 } else { 1.0 }, label)
    }

    /// Linear axis between two values, with round ticks. `label` receives a tick and the distance
    /// to the next.
    pub fn linear(low: f64, high: f64, label: fn(f64, f64) -> String) -> Axis {
        let rough = (high - low) / 5.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let first = (low / step).ceil();
        let ticks = (0..12).map(|i| (first + f64::from(i)) * step).take_while(|tick| *tick <= high + step * 1e-6);
        let ticks = ticks.map(|tick| (tick, label(tick, step))).collect();
        Axis { low, high, scale: Scale::Linear, ticks }
    }

    /// Axis of log-ratios from `low` to `high`, including ×1; large ratios do not squeeze small
    /// ones.
    pub fn ratios(low: f64, high: f64) -> Axis {
        const FAR: [f64; 18] =
            [1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1e3, 1e4];
        let far = |end: f64| if end.is_finite() { end.abs().clamp(0.005, 25.0) } else { 0.1 };
        let (low, high) = (-far(low), far(high));
        let scale = if high.max(-low) > 0.5 { Scale::SymLog(0.05) } else { Scale::Linear };
        let mut ticks = vec![(0.0, String::from("×1"))];
        for ratio in FAR {
            ticks.push((ratio.ln(), format!("×{ratio}")));
            ticks.push((-ratio.ln(), format!("÷{ratio}")));
        }
        ticks.retain(|(tick, _)| (low..=high).contains(tick));
        Axis { low, high, scale, ticks }.without_overlaps()
    }

    /// Axis of log-ratios that covers `logs`, labeled with changes in percent.
    pub fn changes(logs: impl IntoIterator<Item = f64>) -> Axis {
        let (low, high) = ends(logs);
        let air = (high - low) * 0.04;
        let (low, high) = ((low - air).max(-25.0), (high + air).min(25.0));
        let percent = |tick: f64, step: f64| {
            if tick.abs() < step / 2.0 { "0 %".into() } else { format!("{:+.*} %", places(step), tick) }
        };
        let ticks = Axis::linear(low.exp_m1() * 100.0, high.exp_m1() * 100.0, percent).ticks;
        let ticks = ticks.into_iter().map(|(tick, label)| ((tick / 100.0).ln_1p(), label)).collect();
        Axis { low, high, scale: Scale::Linear, ticks }.without_overlaps()
    }

    fn transform(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(f64::MIN_POSITIVE).ln(),
            Scale::SymLog(straight) => (value / straight).asinh(),
        }
    }

    /// Returns a value's position between the bounds, from 0 to 1, clamped.
    pub fn fraction(&self, value: f64) -> f64 {
        let (low, high) = (self.transform(self.low), self.transform(self.high));
        let share = (self.transform(value) - low) / (high - low);
        if share.is_nan() { 0.5 } else { share.clamp(0.0, 1.0) }
    }

    /// Returns a value's horizontal position in percent.
    pub fn to_percent(&self, value: f64) -> f64 {
        EDGE_PERCENT + self.fraction(value) * (100.0 - 2.0 * EDGE_PERCENT)
    }

    /// Returns a value's vertical position in pixels, in a plot of this height.
    pub fn to_px(&self, value: f64, height: f64) -> f64 {
        (1.0 - self.fraction(value)) * height
    }

    /// Whether a value lies on the axis.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Returns the ticks with their labels.
    pub fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }

    /// Drops ticks whose labels would overlap. Earlier ticks and outer ones have priority.
    fn without_overlaps(mut self) -> Axis {
        let mut kept: Vec<(f64, String)> = Vec::new();
        let mut ticks = std::mem::take(&mut self.ticks);
        // The center first, then from the outside in, so that the scale is readable.
        let middle = usize::from(matches!(self.scale, Scale::SymLog(_) | Scale::Linear)).min(ticks.len());
        ticks[middle..].reverse();
        for tick in ticks {
            if kept.iter().all(|other| (self.to_percent(other.0) - self.to_percent(tick.0)).abs() >= MIN_LABEL_DISTANCE)
            {
                kept.push(tick);
            }
        }
        kept.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.ticks = kept;
        self
    }
}

/// Returns the smallest and the largest finite value, which always differ.
fn ends(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    match () {
        () if low > high => (0.0, 1.0),
        () if high - low <= 1e-9 * high.abs() => {
            let air = if high == 0.0 { 1.0 } else { high.abs() * 0.01 };
            (low - air, high + air)
        }
        () => (low, high),
    }
}

/// Formats a tick of seconds with as many decimals as its neighbors need.
pub(crate) fn second_tick(value: f64, step: f64) -> String {
    let (unit, name) = match value.abs().max(step) {
        x if x < 1e-3 => (1e-6, "µs"),
        x if x < 1.0 => (1e-3, "ms"),
        _ => (1.0, "s"),
    };
    format!("{:.*} {name}", places(step / unit), value / unit)
}

/// Formats a tick of bytes.
pub(crate) fn byte_tick(value: f64, step: f64) -> String {
    let (unit, name) = match value.abs().max(step) {
        x if x < 1e6 => (1e3, "kB"),
        x if x < 1e9 => (1e6, "MB"),
        _ => (1e9, "GB"),
    };
    format!("{:.*} {name}", places(step / unit), value / unit)
}

fn places(step: f64) -> usize {
    (-(step + step * 1e-9).log10().floor()).clamp(0.0, 6.0) as usize
}

/// A row of a plot: a label, a drawn strip and a value.
pub(crate) struct PlotRow {
    /// Before the strip; HTML.
    pub label: String,
    /// After the strip; HTML.
    pub value: String,
    /// Description of the strip for screen readers and tooltips; plain text.
    pub title: String,
    /// The strip; SVG.
    pub marks: String,
    /// Its height in pixels.
    pub height: u32,
}

/// Draws rows over a common axis.
pub(crate) fn rows(axis: &Axis, rows: &[PlotRow]) -> String {
    let mut out = String::from("<div class=\"rows\">");
    for row in rows {
        let PlotRow { label, value, marks, height, .. } = row;
        let grid: String = axis
            .ticks()
            .iter()
            .map(|(tick, _)| vertical_line("grid", axis.to_percent(*tick), 0.0, f64::from(*height)))
            .collect();
        out += &format!(
            "<div class=\"row\"><div class=\"label\">{label}</div><svg class=\"strip\" height=\"{height}\" role=\"img\">\
             <title>{}</title>{grid}{marks}</svg><div class=\"value\">{value}</div></div>\n",
            escape(&row.title)
        );
    }
    let labels: String =
        axis.ticks().iter().map(|(tick, label)| text(axis.to_percent(*tick), 15.0, "middle", label)).collect();
    out + &format!(
        "<div class=\"row axis\"><div class=\"label\"></div><svg class=\"strip\" height=\"20\" aria-hidden=\"true\">{labels}</svg></div></div>\n"
    )
}

/// Draws the grid of a plot: horizontal lines with labels for `y_axis`, and labels for `x_axis`
/// below.
pub(crate) fn grid(x_axis: &Axis, y_axis: &Axis, height: f64) -> String {
    let mut out = y_grid(y_axis, height);
    for (tick, label) in x_axis.ticks() {
        out += &text(x_axis.to_percent(*tick), height + 18.0, "middle", label);
    }
    out
}

/// Draws a horizontal line and a label at the left for each tick.
pub(crate) fn y_grid(y_axis: &Axis, height: f64) -> String {
    let mut out = String::new();
    for (tick, label) in y_axis.ticks() {
        let y = y_axis.to_px(*tick, height);
        out += &horizontal_line("grid", 0.0, 100.0, y);
        out += &left_label(y, label);
    }
    out
}

/// Draws a vertical line.
pub(crate) fn vertical_line(class: &str, x: f64, from: f64, to: f64) -> String {
    format!("<line class=\"{class}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{from:.1}\" y2=\"{to:.1}\"/>")
}

/// Draws a horizontal line.
pub(crate) fn horizontal_line(class: &str, from: f64, to: f64, y: f64) -> String {
    format!("<line class=\"{class}\" x1=\"{from:.2}%\" x2=\"{to:.2}%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>")
}

/// Draws a box between two horizontal positions, in either order.
pub(crate) fn bar(class: &str, from: f64, to: f64, y: f64, height: f64) -> String {
    let (x, width) = (from.min(to), (to - from).abs());
    format!("<rect class=\"{class}\" x=\"{x:.2}%\" y=\"{y:.1}\" width=\"{width:.2}%\" height=\"{height:.1}\"/>")
}

/// Draws text.
pub(crate) fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.2}%\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(text))
}

/// Draws a label to the left of a plot.
pub(crate) fn left_label(y: f64, text: &str) -> String {
    format!("<text x=\"0\" y=\"{:.1}\" dx=\"-8\" text-anchor=\"end\">{}</text>", y + 5.0, escape(text))
}

/// Draws a mark with one of the [`SHAPES`].
pub(crate) fn mark(class: &str, shape: &str, x: f64, y: f64) -> String {
    format!("<use class=\"{class}\" href=\"#{shape}\" x=\"{x:.2}%\" y=\"{y:.1}\"/>")
}

/// Draws a curve through points, given in percent across and pixels down, over the whole plot.
pub(crate) fn curve(class: &str, points: &[(f64, f64)], height: f64) -> String {
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.1}")).collect();
    // Only a nested `svg` can be stretched horizontally; CSS keeps the width of its lines.
    format!(
        "<svg x=\"0\" y=\"0\" width=\"100%\" height=\"{height}\" viewBox=\"0 0 100 {height}\" preserveAspectRatio=\"none\">\
         <polyline class=\"{class}\" points=\"{}\"/></svg>",
        path.join(" ")
    )
}

/// Definitions of all mark shapes. Variants and verdicts differ in shape as well as in color.
pub(crate) const SHAPES: &str = "<svg class=\"shapes\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\
<circle id=\"s0\" r=\"4\"/><rect id=\"s1\" x=\"-3.6\" y=\"-3.6\" width=\"7.2\" height=\"7.2\"/>\
<path id=\"s2\" d=\"M0-5 4.6 3.4H-4.6Z\"/><path id=\"s3\" d=\"M0-5.2 5.2 0 0 5.2-5.2 0Z\"/>\
<path id=\"s4\" d=\"M0 5-4.6-3.4H4.6Z\"/><path id=\"s5\" d=\"M-1.4-5h2.8v3.6H5v2.8H1.4V5h-2.8V1.4H-5v-2.8h3.6Z\"/>\
<path id=\"s6\" d=\"M-5-3-3-5 0-2 3-5 5-3 2 0 5 3 3 5 0 2-3 5-5 3-2 0Z\"/><path id=\"s7\" d=\"M-5-2H5V2H-5Z\"/>\
<circle id=\"ring\" r=\"4.5\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"/>\
<pattern id=\"stripes\" class=\"v0\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
<rect width=\"2.5\" height=\"6\"/></pattern></defs></svg>\n";

/// Returns the CSS class and the shape of a variant.
pub(crate) fn variant_style(index: usize) -> (String, String) {
    (format!("v{}", index % 8), format!("s{}", (index + index / 8) % 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_position() {
        for axis in [
            Axis::of([], second_tick),
            Axis::of([3.0], second_tick),
            Axis::of([f64::NAN, f64::INFINITY, 0.0, 0.0], second_tick),
            Axis::of([0.001, 2.0], second_tick),
            Axis::from_zero([f64::NAN], byte_tick),
            Axis::ratios(f64::NAN, f64::INFINITY),
            Axis::ratios(0.0, 0.0),
            Axis::ratios(-1e9, 0.01),
        ] {
            assert!(axis.ticks().iter().all(|(tick, _)| tick.is_finite()) && axis.ticks().len() < 14);
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300] {
                assert!(
                    (0.0..=100.0).contains(&axis.to_percent(value)) && (0.0..=50.0).contains(&axis.to_px(value, 50.0))
                );
            }
        }
    }

    #[test]
    fn ticks_are_round_and_do_not_overlap() {
        let labels = |axis: Axis| axis.ticks().iter().map(|(_, label)| label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(Axis::linear(0.0101, 0.0139, second_tick)), ["11 ms", "12 ms", "13 ms"]);
        assert_eq!(labels(Axis::linear(0.0, 1.2e9, byte_tick)), ["0 MB", "500 MB", "1.0 GB"]);
        for reach in [0.006, 0.03, 0.2, 0.6, 2.0, 9.0] {
            let axis = Axis::ratios(-reach, reach);
            let places: Vec<f64> = axis.ticks().iter().map(|(tick, _)| axis.to_percent(*tick)).collect();
            assert!(
                places.len() >= 3 && places.windows(2).all(|two| two[1] - two[0] >= MIN_LABEL_DISTANCE),
                "{reach}: {places:?}"
            );
            assert!(axis.ticks().iter().any(|(tick, _)| *tick == 0.0));
        }
    }

    #[test]
    fn markup_and_control_characters_become_text() {
        assert_eq!(escape("<b>&\"'\u{1b}[0m"), "&lt;b&gt;&amp;&quot;&#39;␛[0m");
    }
}
