//! The activation functions themselves, and the loops that apply one to a slice.

use super::{Activation, Unary, with_activation};
use crate::dispatch;
use crate::recurrence;
use crate::simd::{LANES, Lanes, Simd};

/// Applies `x = f(x)` elementwise. The last lanes use the same vector code, so a result never
/// depends on an element's index.
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, f: &impl Unary, x: &mut [f32]) {
    let wide = s.panel();
    let mut chunks = x.chunks_exact_mut(S::Panel::COUNT);
    for chunk in &mut chunks {
        // SAFETY: the chunk holds a vector.
        unsafe { wide.store(chunk.as_mut_ptr(), f.apply(wide, wide.load(chunk.as_ptr()))) };
    }
    for rest in chunks.into_remainder().chunks_mut(LANES) {
        let y = f.apply(s, s.load_partial(rest, 0.0));
        s.store_partial(rest, y);
    }
}

/// Applies `gate = f(gate) · linear` elementwise.
#[inline(always)]
fn map_gated<S: Simd>(s: S, f: &impl Unary, gate: &mut [f32], linear: &[f32]) {
    assert_eq!(gate.len(), linear.len(), "both branches of a gated MLP have one width");
    let wide = s.panel();
    let mut gates = gate.chunks_exact_mut(S::Panel::COUNT);
    let mut linears = linear.chunks_exact(S::Panel::COUNT);
    for (gate, linear) in (&mut gates).zip(&mut linears) {
        // SAFETY: both chunks hold a vector.
        unsafe {
            let y = wide.mul(f.apply(wide, wide.load(gate.as_ptr())), f.linear(wide, wide.load(linear.as_ptr())));
            wide.store(gate.as_mut_ptr(), y);
        }
    }
    for (gate, linear) in gates.into_remainder().chunks_mut(LANES).zip(linears.remainder().chunks(LANES)) {
        let y = s.mul(f.apply(s, s.load_partial(gate, 0.0)), f.linear(s, s.load_partial(linear, 0.0)));
        s.store_partial(gate, y);
    }
}

/// `e^x`: range reduction by powers of two and a polynomial of degree six; 0 below -87.3, no
/// overflow above 88.3.
#[inline(always)]
pub(crate) fn exp<S: Lanes>(s: S, x: S::V) -> S::V {
    let lowest = s.splat(-87.336_54);
    // Pass the constant first, here and below: x86 `min` and `max` return the second operand if
    // either is NaN, so NaN propagates.
    let clamped = s.max(lowest, s.min(s.splat(88.376_26), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, so that the reduced argument keeps its low bits.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_2e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = s.fma(p, r, s.splat(c));
    }
    let y = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    let y = s.mul(y, s.pow2(n));
    s.select_lt(x, lowest, s.splat(0.0), y)
}

/// `tanh(x)` as a ratio of polynomials; exactly ±1 where the difference is below f32 precision.
#[inline(always)]
pub(crate) fn tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    let (most, least) = (s.splat(7.905_311), s.splat(-7.905_311));
    let clamped = s.max(least, s.min(most, x));
    let square = s.mul(clamped, clamped);
    let mut above = s.splat(-2.760_768_5e-16);
    for c in [2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_524_6e-3] {
        above = s.fma(above, square, s.splat(c));
    }
    let mut below = s.splat(1.198_258_4e-6);
    for c in [1.185_347e-4, 2.268_434_6e-3, 4.893_525e-3] {
        below = s.fma(below, square, s.splat(c));
    }
    let y = s.div(s.mul(clamped, above), below);
    // The ratio ends one rounding error short of ±1.
    let y = s.select_lt(x, least, s.splat(-1.0), y);
    s.select_lt(most, x, s.splat(1.0), y)
}

#[inline(always)]
pub(crate) fn sigmoid<S: Lanes>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// The error function (Abramowitz and Stegun 7.1.26): absolute error below 2e-7.
#[inline(always)]
pub(crate) fn erf<S: Lanes>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let size = s.max(x, s.sub(zero, x));
    let t = s.div(s.splat(1.0), s.fma(s.splat(0.327_591_1), size, s.splat(1.0)));
    let mut p = s.splat(1.061_405_4);
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = s.fma(p, t, s.splat(c));
    }
    let tail = s.mul(s.mul(p, t), exp(s, s.sub(zero, s.mul(size, size))));
    let y = s.sub(s.splat(1.0), tail);
    s.select_lt(x, zero, s.sub(zero, y), y)
}

/// `x · sigmoid(factor · x)` with a single division, which rounds less than a product with the
/// sigmoid.
#[inline(always)]
fn sigmoid_gated<S: Lanes>(s: S, x: S::V, factor: f32) -> S::V {
    s.div(x, s.add(s.splat(1.0), exp(s, s.mul(s.splat(-factor), x))))
}

#[inline(always)]
pub(super) fn silu<S: Lanes>(s: S, x: S::V) -> S::V {
    sigmoid_gated(s, x, 1.0)
}

#[inline(always)]
pub(super) fn gelu<S: Lanes>(s: S, x: S::V) -> S::V {
    let half = s.splat(0.5);
    s.mul(s.mul(x, half), s.add(s.splat(1.0), erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)))))
}

#[inline(always)]
pub(super) fn gelu_tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    // sqrt(2 / π) (x + 0.044715 x³)
    let cubic = s.fma(s.mul(s.splat(0.044_715), s.mul(x, x)), x, x);
    let inner = s.mul(s.splat(0.797_884_6), cubic);
    s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), tanh(s, inner)))
}

#[inline(always)]
pub(super) fn gelu_quick<S: Lanes>(s: S, x: S::V) -> S::V {
    sigmoid_gated(s, x, 1.702)
}

#[inline(always)]
pub(super) fn relu<S: Lanes>(s: S, x: S::V) -> S::V {
    s.max(s.splat(0.0), x)
}

#[inline(always)]
pub(super) fn relu_squared<S: Lanes>(s: S, x: S::V) -> S::V {
    let y = s.max(s.splat(0.0), x);
    s.mul(y, y)
}

#[inline(always)]
pub(super) fn identity<S: Lanes>(_: S, x: S::V) -> S::V {
    x
}

#[inline(always)]
pub(super) fn softplus<S: Lanes>(s: S, x: S::V) -> S::V {
    // Used for gates with one element per head: not worth a polynomial.
    s.map_lanes(x, recurrence::softplus)
}

#[inline(always)]
pub(super) fn clamped_glu<S: Lanes>(s: S, x: S::V) -> S::V {
    gelu_quick(s, s.min(s.splat(7.0), x))
}

#[inline(always)]
pub(super) fn clamped_linear<S: Lanes>(s: S, x: S::V) -> S::V {
    s.add(s.max(s.splat(-7.0), s.min(s.splat(7.0), x)), s.splat(1.0))
}

#[inline(always)]
pub(super) fn activate_with<S: Simd>(s: S, activation: Activation, x: &mut [f32]) {
    with_activation!(activation, f => map(s, f, x))
}

#[inline(always)]
fn activate_gated_with<S: Simd>(s: S, activation: Activation, gate: &mut [f32], linear: &[f32]) {
    with_activation!(activation, f => map_gated(s, f, gate, linear))
}

dispatch! {
    /// `x = activation(x)`
    pub fn activate(activation: Activation, x: &mut [f32]) = activate_with
}
dispatch! {
    /// `gate = activation(gate) · linear`
    pub fn activate_gated(activation: Activation, gate: &mut [f32], linear: &[f32]) = activate_gated_with
}

/// xIELU: a parabola above zero, an exponential below. `positive` and `negative` are the learned
/// parameters before softplus, as checkpoints store them.
pub fn xielu(x: &mut [f32], positive: f32, negative: f32) {
    const BETA: f32 = 0.5;
    let (above, below) = (recurrence::softplus(positive), BETA + recurrence::softplus(negative));
    for x in x {
        *x = if *x > 0.0 { above * *x * *x + BETA * *x } else { (x.min(-1e-6).exp_m1() - *x) * below + BETA * *x };
    }
}

/// `cap · tanh(x / cap)`
pub(crate) struct SoftCap(pub f32);

impl Unary for SoftCap {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        let cap = s.splat(self.0);
        s.mul(cap, tanh(s, s.div(x, cap)))
    }
}
