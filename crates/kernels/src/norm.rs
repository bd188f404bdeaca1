//! Layer and root-mean-square norms, in the two steps that interpretability names apart: normalise, then gain.

use crate::dispatch;
use crate::simd::{LANES, Simd};

/// Which moments a norm removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// Subtract the mean, divide by the standard deviation.
    Layer,
    /// Divide by the root mean square.
    Rms,
}

#[inline(always)]
fn sum_with<S: Simd>(s: S, x: &[f32], mean: f32, squares: bool) -> f32 {
    let mean = s.splat(mean);
    let term = |v: S::V| {
        let centred = s.sub(v, mean);
        if squares { s.mul(centred, centred) } else { centred }
    };
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    let mut sum = s.splat(0.0);
    for chunk in chunks {
        // SAFETY: the chunk holds eight floats.
        sum = s.add(sum, term(unsafe { s.load(chunk.as_ptr()) }));
    }
    let mut total = s.sum(sum);
    let tail = s.to_array(term(s.load_part(rest, 0.0)));
    tail[..rest.len()].iter().for_each(|&x| total += x);
    total
}

#[inline(always)]
fn normalise_with<S: Simd>(
    s: S,
    kind: NormKind,
    eps: f32,
    x: &[f32],
    width: usize,
    normed: &mut [f32],
    scales: &mut [f32],
) {
    for ((x, normed), scale) in x.chunks_exact(width).zip(normed.chunks_exact_mut(width)).zip(scales) {
        let mean = match kind {
            NormKind::Layer => sum_with(s, x, 0.0, false) / width as f32,
            NormKind::Rms => 0.0,
        };
        *scale = (sum_with(s, x, mean, true) / width as f32 + eps).sqrt();
        let inverse = 1.0 / *scale;
        normed.iter_mut().zip(x).for_each(|(y, &x)| *y = (x - mean) * inverse);
    }
}

dispatch! {
    /// Normalises each row of `width` values: `normed = (x - mean) / scale`, with the scale of each row beside it.
    pub fn normalise(kind: NormKind, eps: f32, x: &[f32], width: usize, normed: &mut [f32], scales: &mut [f32]) = normalise_with
}

/// `x = x · gain + bias` for each row.
pub fn gain(x: &mut [f32], gain: Option<&[f32]>, bias: Option<&[f32]>, width: usize) {
    for row in x.chunks_exact_mut(width) {
        if let Some(gain) = gain {
            row.iter_mut().zip(gain).for_each(|(x, &g)| *x *= g);
        }
        if let Some(bias) = bias {
            row.iter_mut().zip(bias).for_each(|(x, &b)| *x += b);
        }
    }
}

#[inline(always)]
fn centred_product_with<S: Simd>(s: S, x: &[f32], mean: f32, gradient: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (x, gradient) in x.chunks(LANES).zip(gradient.chunks(LANES)) {
        // Lanes past the end have a gradient of zero.
        sum = s.fma(s.sub(s.load_part(x, 0.0), s.splat(mean)), s.load_part(gradient, 0.0), sum);
    }
    s.sum(sum)
}

#[inline(always)]
fn normalise_back_with<S: Simd>(s: S, kind: NormKind, eps: f32, x: &[f32], width: usize, gradient: &mut [f32]) {
    let count = width as f32;
    for (x, gradient) in x.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
        let (mean, level) = match kind {
            NormKind::Layer => (sum_with(s, x, 0.0, false) / count, sum_with(s, gradient, 0.0, false) / count),
            NormKind::Rms => (0.0, 0.0),
        };
        let scale = (sum_with(s, x, mean, true) / count + eps).sqrt();
        // What the gradient says along the value only changes its length, which the norm takes away.
        let along = centred_product_with(s, x, mean, gradient) / (scale * scale * count);
        let inverse = 1.0 / scale;
        gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = (*g - level - (x - mean) * along) * inverse);
    }
}

dispatch! {
    /// The gradient of [`normalise`]: from that of the normed value to that of `x`, in place.
    pub fn normalise_back(kind: NormKind, eps: f32, x: &[f32], width: usize, gradient: &mut [f32]) = normalise_back_with
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_norms_agree_with_double_precision() {
        for width in [1, 7, 8, 33, 576] {
            let x: Vec<f32> = (0..2 * width).map(|i| (i as f32 * 1.3).sin() * 2.0 + 0.5).collect();
            for kind in [NormKind::Layer, NormKind::Rms] {
                let (mut normed, mut scales) = (vec![0.0; 2 * width], vec![0.0; 2]);
                normalise(kind, 1e-5, &x, width, &mut normed, &mut scales);
                for row in 0..2 {
                    let x: Vec<f64> = x[row * width..][..width].iter().map(|&x| x as f64).collect();
                    let mean = if kind == NormKind::Layer { x.iter().sum::<f64>() / width as f64 } else { 0.0 };
                    let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64 + 1e-5).sqrt();
                    assert!((scales[row] as f64 - scale).abs() < 1e-5 * scale, "{kind:?} {width}");
                    for (y, x) in normed[row * width..].iter().zip(&x) {
                        assert!((*y as f64 - (x - mean) / scale).abs() < 1e-5, "{kind:?} {width}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_are_those_of_the_norm() {
        for width in [3, 8, 21] {
            let x: Vec<f32> = (0..width).map(|i| (i as f32 * 1.3).sin() * 2.0 + 0.5).collect();
            let upstream: Vec<f32> = (0..width).map(|i| (i as f32 * 0.7).cos()).collect();
            for kind in [NormKind::Layer, NormKind::Rms] {
                let value = |x: &[f64]| -> f64 {
                    let mean = if kind == NormKind::Layer { x.iter().sum::<f64>() / width as f64 } else { 0.0 };
                    let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64 + 1e-3).sqrt();
                    x.iter().zip(&upstream).map(|(x, &g)| (x - mean) / scale * g as f64).sum()
                };
                let mut gradient = upstream.clone();
                normalise_back(kind, 1e-3, &x, width, &mut gradient);
                for (i, &ours) in gradient.iter().enumerate() {
                    let at = |by: f64| {
                        let mut moved: Vec<f64> = x.iter().map(|&x| x as f64).collect();
                        moved[i] += by;
                        value(&moved)
                    };
                    let truth = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!((ours as f64 - truth).abs() < 1e-5, "{kind:?} {width}: {ours} instead of {truth}");
                }
            }
        }
    }
}
