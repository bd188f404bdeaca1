//! The two color scales of the lens, perceptually uniform, with a readable text color for each
//! step.
//!
//! A scale is a straight line in OKLCH: lightness changes by the same amount at every step, so that
//! equal differences of probability look equal, also in grayscale and to color-blind readers. The
//! hue changes along the scale only to make steps easier to name.

use std::fmt;

/// An sRGB color, eight bits per channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rgb(pub u8, pub u8, pub u8);

impl fmt::Display for Rgb {
    /// Formats the color for CSS: `#1b2a49`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

const BLACK: Rgb = Rgb(0, 0, 0);
const WHITE: Rgb = Rgb(255, 255, 255);

/// A line through OKLCH, given by its two ends.
pub(super) struct Scale {
    lightness: [f32; 2],
    chroma: [f32; 2],
    /// In degrees, not wrapped, so that the ends also give the direction of the hue.
    hue: [f32; 2],
}

/// Dark blue to bright yellow, for terminals and dark pages: brighter means stronger.
pub(super) const DARK: Scale = Scale { lightness: [0.25, 0.91], chroma: [0.03, 0.14], hue: [280.0, 100.0] };

/// Near-white to deep indigo, for light pages: darker means stronger.
pub(super) const LIGHT: Scale = Scale { lightness: [0.965, 0.40], chroma: [0.01, 0.13], hue: [190.0, 275.0] };

/// [`DARK`] in eight hand-picked colors of the xterm palette.
///
/// The nearest palette color to each step does not work: the palette is so coarse that neighbors
/// jump between gray, green and blue, and brightness is not monotonic.
const DARK_256: [u8; 8] = [235, 237, 24, 30, 36, 78, 185, 227];

/// Returns the palette index for a strength from 0 to 1, and that of the text color on it.
pub(super) fn dark_256(strength: f32) -> (u8, u8) {
    // The cast saturates and maps NaN to 0.
    let step = ((strength * DARK_256.len() as f32) as usize).min(DARK_256.len() - 1);
    let text = if palette_256(DARK_256[step]).text_color() == BLACK { 16 } else { 231 };
    (DARK_256[step], text)
}

impl Scale {
    /// Returns the color of a strength from 0 to 1; NaN counts as 0.
    pub(super) fn at(&self, strength: f32) -> Rgb {
        let t = if strength.is_nan() { 0.0 } else { strength.clamp(0.0, 1.0) };
        let [lightness, chroma, hue] =
            [self.lightness, self.chroma, self.hue].map(|[from, to]: [f32; 2]| from + (to - from) * t);
        let (sin, cos) = hue.to_radians().sin_cos();
        from_oklab([lightness, chroma * cos, chroma * sin])
    }

    /// Returns `count` pairs of background and text color, from strength 0 to 1.
    pub(super) fn steps(&self, count: usize) -> impl Iterator<Item = (Rgb, Rgb)> + '_ {
        (0..count).map(move |step| {
            let color = self.at(step as f32 / (count - 1).max(1) as f32);
            (color, color.text_color())
        })
    }
}

impl Rgb {
    /// Returns black or white, whichever has more contrast on this color.
    pub(super) fn text_color(self) -> Rgb {
        // WCAG contrast is (lighter + 0.05) / (darker + 0.05); black and white tie where these
        // products are equal.
        let background = self.luminance() + 0.05;
        if background * background > 0.05 * 1.05 { BLACK } else { WHITE }
    }

    /// Relative luminance as WCAG defines it, from 0 to 1.
    fn luminance(self) -> f32 {
        let [r, g, b] = self.linear();
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn linear(self) -> [f32; 3] {
        [self.0, self.1, self.2].map(|byte| {
            let c = f32::from(byte) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }
}

/// Converts OKLab to sRGB; colors out of gamut are clipped.
fn from_oklab([lightness, a, b]: [f32; 3]) -> Rgb {
    let l = (lightness + 0.396_337_78 * a + 0.215_803_76 * b).powi(3);
    let m = (lightness - 0.105_561_346 * a - 0.063_854_17 * b).powi(3);
    let s = (lightness - 0.089_484_18 * a - 1.291_485_5 * b).powi(3);
    let byte = |c: f32| {
        let c = if c <= 0.003_130_8 { c * 12.92 } else { 1.055 * c.powf(1.0 / 2.4) - 0.055 };
        (c.clamp(0.0, 1.0) * 255.0).round() as u8
    };
    Rgb(
        byte(4.076_741_7 * l - 3.307_711_6 * m + 0.230_969_94 * s),
        byte(-1.268_438 * l + 2.609_757_4 * m - 0.341_319_4 * s),
        byte(-0.004_196_086 * l - 0.703_418_6 * m + 1.707_614_7 * s),
    )
}

/// Returns a color of the fixed part of the xterm palette: a 6×6×6 cube, then 24 grays.
fn palette_256(index: u8) -> Rgb {
    if index >= 232 {
        let gray = 8 + 10 * (index - 232);
        return Rgb(gray, gray, gray);
    }
    let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
    let n = index.saturating_sub(16);
    Rgb(level(n / 36), level(n / 6 % 6), level(n % 6))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the OKLab lightness.
    fn lightness(color: Rgb) -> f32 {
        let [r, g, b] = color.linear();
        let l = (0.412_221_46 * r + 0.536_332_55 * g + 0.051_445_995 * b).cbrt();
        let m = (0.211_903_5 * r + 0.680_699_5 * g + 0.107_396_96 * b).cbrt();
        let s = (0.088_302_46 * r + 0.281_718_85 * g + 0.629_978_7 * b).cbrt();
        0.210_454_26 * l + 0.793_617_8 * m - 0.004_072_047 * s
    }

    #[test]
    fn both_scales_step_evenly_in_lightness() {
        for (scale, sign) in [(DARK, 1.0), (LIGHT, -1.0)] {
            let steps: Vec<f32> = scale.steps(21).map(|(color, _)| lightness(color)).collect();
            let even = sign * (steps[20] - steps[0]) / 20.0;
            for pair in steps.windows(2) {
                let step = sign * (pair[1] - pair[0]);
                // Eight bits per channel round a step by up to about 0.004; clipping would show as
                // much more.
                assert!((step - even).abs() < 0.006, "step {step} where {even} is even");
            }
        }
    }

    #[test]
    fn text_is_readable_on_every_step_and_every_palette_color() {
        let contrast = |a: f32, b: f32| (a.max(b) + 0.05) / (a.min(b) + 0.05);
        let palette = (16..=255).map(palette_256);
        for color in DARK.steps(101).chain(LIGHT.steps(101)).map(|(color, _)| color).chain(palette) {
            let found = contrast(color.luminance(), color.text_color().luminance());
            assert!(found >= 4.5, "{color} has contrast {found}");
        }
    }

    #[test]
    fn the_palette_scale_grows_steadily_brighter() {
        for pair in DARK_256.windows(2) {
            let step = lightness(palette_256(pair[1])) - lightness(palette_256(pair[0]));
            assert!((0.06..0.13).contains(&step), "{pair:?} differ by {step}");
        }
        assert_eq!([dark_256(0.0), dark_256(0.5), dark_256(1.0)], [(235, 231), (36, 16), (227, 16)]);
    }

    #[test]
    fn strengths_out_of_range_are_clamped() {
        for (odd, same) in [(-3.0, 0.0), (7.0, 1.0), (f32::NAN, 0.0), (f32::INFINITY, 1.0)] {
            assert_eq!((DARK.at(odd), dark_256(odd)), (DARK.at(same), dark_256(same)), "{odd}");
        }
    }

    #[test]
    fn colors_are_formatted_as_in_css() {
        assert_eq!(Rgb(27, 42, 9).to_string(), "#1b2a09");
        assert_eq!([palette_256(208), palette_256(244)], [Rgb(255, 135, 0), Rgb(128, 128, 128)]);
    }
}
