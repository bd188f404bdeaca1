//! Softmax of a row.

use crate::activation::{Unary, exp, map};
use crate::dispatch;
use crate::simd::{LANES, Lanes, Simd};

pub(crate) struct ExpMinus(pub f32);

impl Unary for ExpMinus {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        exp(s, s.sub(x, s.splat(self.0)))
    }
}

#[inline(always)]
fn softmax_with<S: Simd>(s: S, x: &mut [f32], sink: Option<f32>) {
    let mut top = s.splat(f32::NEG_INFINITY);
    for part in x.chunks(LANES) {
        top = s.max(top, s.load_partial(part, f32::NEG_INFINITY));
    }
    let mut top = s.largest(top);
    if let Some(sink) = sink {
        top = top.max(sink);
    }
    // A row of -inf gets weights of zero; NaN stays NaN.
    let top = if top == f32::NEG_INFINITY { 0.0 } else { top };
    map(s, &ExpMinus(top), x);
    let mut sum = s.splat(0.0);
    for part in x.chunks(LANES) {
        sum = s.add(sum, s.load_partial(part, 0.0));
    }
    let sum = s.sum(sum) + sink.map_or(0.0, |sink| (sink - top).exp());
    if sum != 0.0 {
        x.iter_mut().for_each(|x| *x /= sum);
    }
}

dispatch! {
    /// Computes `x = softmax(x)`. `sink` is an attention sink: one extra logit whose weight is
    /// discarded. A row of -inf becomes zeros.
    pub fn softmax(x: &mut [f32], sink: Option<f32>) = softmax_with
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_one_minus_the_sink() {
        let mut x = [1.0, f32::NEG_INFINITY, 3.0, -200.0, 2.5];
        softmax(&mut x, None);
        assert!((x.iter().sum::<f32>() - 1.0).abs() < 1e-6 && x[1] == 0.0 && x[2] > x[4]);
        let mut x = [0.0, 0.0];
        softmax(&mut x, Some(0.0));
        assert!(x.iter().all(|&p| (p - 1.0 / 3.0).abs() < 1e-6));
        let mut x = [f32::NEG_INFINITY; 3];
        softmax(&mut x, None);
        assert_eq!(x, [0.0; 3]);
    }

    /// A NaN score must not give a finite weight.
    #[test]
    fn nan_stays_nan() {
        for length in [3, 8, 40] {
            let mut x = vec![0.5; length];
            x[length / 2] = f32::NAN;
            softmax(&mut x, None);
            assert!(x.iter().all(|x| x.is_nan()), "{x:?}");
            x.fill(f32::NAN);
            softmax(&mut x, None);
            assert!(x.iter().all(|x| x.is_nan()), "{x:?}");
        }
    }
}
