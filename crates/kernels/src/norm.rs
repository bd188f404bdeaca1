//! LayerNorm and RMSNorm in two steps, because interpretability hooks see the value in between:
//! normalize, then gain and bias.

use crate::dispatch;
use crate::simd::{LANES, Simd};

/// Kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum NormKind {
    /// Subtract the mean, divide by the standard deviation.
    Layer,
    /// Divide by the root mean square.
    Rms,
}

/// Elements whose sum is computed in f32; the sums of these blocks are added in f64. An error of a
/// row's scale is common to all of its elements, so it does not average out in the next product.
const SUM_BLOCK: usize = 8 * LANES;

/// Sum of `x - mean`, or of its squares.
#[inline(always)]
fn sum_with<S: Simd>(s: S, x: &[f32], mean: f32, squares: bool) -> f64 {
    let center = s.splat(mean);
    let add = |sum: S::V, v: S::V| {
        let centered = s.sub(v, center);
        if squares { s.fma(centered, centered, sum) } else { s.add(sum, centered) }
    };
    let mut total = 0.0;
    for block in x.chunks(SUM_BLOCK) {
        let chunks = block.chunks_exact(LANES);
        let rest = chunks.remainder();
        let mut sum = s.splat(0.0);
        for chunk in chunks {
            // SAFETY: the chunk holds eight floats.
            sum = add(sum, unsafe { s.load(chunk.as_ptr()) });
        }
        if !rest.is_empty() {
            // Lanes past the end hold the mean, so they add 0.
            sum = add(sum, s.load_partial(rest, mean));
        }
        total += s.sum(sum) as f64;
    }
    total
}

#[inline(always)]
fn normalize_with<S: Simd>(
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
            NormKind::Layer => (sum_with(s, x, 0.0, false) / width as f64) as f32,
            NormKind::Rms => 0.0,
        };
        let exact = (sum_with(s, x, mean, true) / width as f64 + eps as f64).sqrt();
        *scale = exact as f32;
        let inverse = (1.0 / exact) as f32;
        normed.iter_mut().zip(x).for_each(|(y, &x)| *y = (x - mean) * inverse);
    }
}

dispatch! {
    /// Normalizes each row of `width` elements: `normed = (x - mean) / scale`; writes the scale of
    /// each row to `scales`.
    pub fn normalize(kind: NormKind, eps: f32, x: &[f32], width: usize, normed: &mut [f32], scales: &mut [f32]) = normalize_with
}

/// Applies `x = x · gain + bias` to each row of `width` elements.
pub fn apply_gain(x: &mut [f32], gain: Option<&[f32]>, bias: Option<&[f32]>, width: usize) {
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
fn centered_product_with<S: Simd>(s: S, x: &[f32], mean: f32, gradient: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (x, gradient) in x.chunks(LANES).zip(gradient.chunks(LANES)) {
        // Lanes past the end have gradient 0.
        sum = s.fma(s.sub(s.load_partial(x, 0.0), s.splat(mean)), s.load_partial(gradient, 0.0), sum);
    }
    s.sum(sum)
}

#[inline(always)]
fn normalize_backward_with<S: Simd>(s: S, kind: NormKind, eps: f32, x: &[f32], width: usize, gradient: &mut [f32]) {
    let count = width as f32;
    let average = |x: &[f32]| (sum_with(s, x, 0.0, false) / width as f64) as f32;
    for (x, gradient) in x.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
        let (mean, gradient_mean) = match kind {
            NormKind::Layer => (average(x), average(gradient)),
            NormKind::Rms => (0.0, 0.0),
        };
        let scale = ((sum_with(s, x, mean, true) / width as f64 + eps as f64).sqrt()) as f32;
        // The gradient's component along `x` only changes its length, which the norm removes.
        let along = centered_product_with(s, x, mean, gradient) / (scale * scale * count);
        let inverse = 1.0 / scale;
        gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = (*g - gradient_mean - (x - mean) * along) * inverse);
    }
}

dispatch! {
    /// Backward pass of [`normalize`], in place: `gradient` is that of `normed` and becomes that of
    /// `x`.
    pub fn normalize_backward(kind: NormKind, eps: f32, x: &[f32], width: usize, gradient: &mut [f32]) = normalize_backward_with
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
                normalize(kind, 1e-5, &x, width, &mut normed, &mut scales);
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
    fn gradients_agree_with_central_differences() {
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
                normalize_backward(kind, 1e-3, &x, width, &mut gradient);
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
