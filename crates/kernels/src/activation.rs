//! Activation functions, a vector at a time, each a polynomial accurate to a few units in the last place.

use crate::dispatch;
use crate::recurrence::softplus;
use crate::simd::{LANES, Lanes, Simd};

/// The activation functions that models use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    /// GELU by the error function.
    Gelu,
    /// GELU by the tanh approximation (`gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`).
    GeluTanh,
    /// GELU as `x · sigmoid(1.702 x)`.
    GeluQuick,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    ReluSquared,
    /// `tanh(x)`
    Tanh,
    /// `sigmoid(x)`
    Sigmoid,
    /// `x`
    Identity,
    /// `ln(1 + eˣ)`
    Softplus,
    /// GPT-OSS's gate: both branches clamped to 7, `gate · sigmoid(1.702 gate) · (linear + 1)`.
    ClampedGlu,
}

/// A function of one vector.
pub(crate) trait Unary {
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V;

    /// What the other branch of a gated MLP becomes before it is multiplied.
    #[inline(always)]
    fn linear<S: Lanes>(&self, _: S, x: S::V) -> S::V {
        x
    }
}

/// `x = f(x)` everywhere; the last lanes go through the same vector code, so a value's result never depends on its place.
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, f: &impl Unary, x: &mut [f32]) {
    let wide = s.panel();
    let mut chunks = x.chunks_exact_mut(S::Panel::COUNT);
    for chunk in &mut chunks {
        // SAFETY: the chunk holds a vector.
        unsafe { wide.store(chunk.as_mut_ptr(), f.apply(wide, wide.load(chunk.as_ptr()))) };
    }
    for rest in chunks.into_remainder().chunks_mut(LANES) {
        let y = f.apply(s, s.load_part(rest, 0.0));
        s.store_part(rest, y);
    }
}

/// `gate = f(gate) · linear` everywhere.
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
        let y = s.mul(f.apply(s, s.load_part(gate, 0.0)), f.linear(s, s.load_part(linear, 0.0)));
        s.store_part(gate, y);
    }
}

/// `e^x`: range reduction by powers of two and a polynomial of degree six; 0 below -87.3, no overflow above 88.3.
#[inline(always)]
pub(crate) fn exp<S: Lanes>(s: S, x: S::V) -> S::V {
    let lowest = s.splat(-87.336_54);
    // Limits come first, here and below: of NaN and a number the second operand is taken, and what is no number must stay none.
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

/// `tanh(x)` as a ratio of polynomials; ±1 where it differs from that by less than f32 can say.
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
    // The ratio stops a rounding short of its limits.
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

pub(crate) struct Silu;
pub(crate) struct Gelu;
pub(crate) struct GeluTanh;
pub(crate) struct GeluQuick;
pub(crate) struct Relu;
pub(crate) struct ReluSquared;
pub(crate) struct Tanh;
pub(crate) struct Sigmoid;
pub(crate) struct Identity;
pub(crate) struct Softplus;
pub(crate) struct ClampedGlu;

impl Unary for Silu {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        s.mul(x, sigmoid(s, x))
    }
}
impl Unary for Gelu {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        let half = s.splat(0.5);
        s.mul(s.mul(x, half), s.add(s.splat(1.0), erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)))))
    }
}
impl Unary for GeluTanh {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        // sqrt(2 / π) (x + 0.044715 x³)
        let cubic = s.fma(s.mul(s.splat(0.044_715), s.mul(x, x)), x, x);
        let inner = s.mul(s.splat(0.797_884_6), cubic);
        s.mul(s.mul(s.splat(0.5), x), s.add(s.splat(1.0), tanh(s, inner)))
    }
}
impl Unary for GeluQuick {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        s.mul(x, sigmoid(s, s.mul(s.splat(1.702), x)))
    }
}
impl Unary for Relu {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        s.max(s.splat(0.0), x)
    }
}
impl Unary for ReluSquared {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        let y = s.max(s.splat(0.0), x);
        s.mul(y, y)
    }
}
impl Unary for Tanh {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        tanh(s, x)
    }
}
impl Unary for Sigmoid {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        sigmoid(s, x)
    }
}
impl Unary for Identity {
    #[inline(always)]
    fn apply<S: Lanes>(&self, _: S, x: S::V) -> S::V {
        x
    }
}

impl Unary for Softplus {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        // Gates of this kind are one number a head: not worth a polynomial.
        s.each(x, softplus)
    }
}
impl Unary for ClampedGlu {
    #[inline(always)]
    fn apply<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        GeluQuick.apply(s, s.min(s.splat(7.0), x))
    }

    #[inline(always)]
    fn linear<S: Lanes>(&self, s: S, x: S::V) -> S::V {
        s.add(s.max(s.splat(-7.0), s.min(s.splat(7.0), x)), s.splat(1.0))
    }
}

/// Calls `$with` with the function that `$activation` names.
macro_rules! choose_activation {
    ($activation:expr, $f:ident => $with:expr) => {
        match $activation {
            $crate::activation::Activation::Silu => {
                let $f = &$crate::activation::Silu;
                $with
            }
            $crate::activation::Activation::Gelu => {
                let $f = &$crate::activation::Gelu;
                $with
            }
            $crate::activation::Activation::GeluTanh => {
                let $f = &$crate::activation::GeluTanh;
                $with
            }
            $crate::activation::Activation::GeluQuick => {
                let $f = &$crate::activation::GeluQuick;
                $with
            }
            $crate::activation::Activation::Relu => {
                let $f = &$crate::activation::Relu;
                $with
            }
            $crate::activation::Activation::ReluSquared => {
                let $f = &$crate::activation::ReluSquared;
                $with
            }
            $crate::activation::Activation::Tanh => {
                let $f = &$crate::activation::Tanh;
                $with
            }
            $crate::activation::Activation::Sigmoid => {
                let $f = &$crate::activation::Sigmoid;
                $with
            }
            $crate::activation::Activation::Identity => {
                let $f = &$crate::activation::Identity;
                $with
            }
            $crate::activation::Activation::Softplus => {
                let $f = &$crate::activation::Softplus;
                $with
            }
            $crate::activation::Activation::ClampedGlu => {
                let $f = &$crate::activation::ClampedGlu;
                $with
            }
        }
    };
}
pub(crate) use choose_activation;

#[inline(always)]
fn activate_with<S: Simd>(s: S, activation: Activation, x: &mut [f32]) {
    choose_activation!(activation, f => map(s, f, x))
}

#[inline(always)]
fn activate_gated_with<S: Simd>(s: S, activation: Activation, gate: &mut [f32], linear: &[f32]) {
    choose_activation!(activation, f => map_gated(s, f, gate, linear))
}

dispatch! {
    /// `x = activation(x)`
    pub fn activate(activation: Activation, x: &mut [f32]) = activate_with
}
dispatch! {
    /// `gate = activation(gate) · linear`
    pub fn activate_gated(activation: Activation, gate: &mut [f32], linear: &[f32]) = activate_gated_with
}

/// xIELU: a parabola above zero, an exponential below, by two learned numbers that are stored before their softplus.
pub fn xielu(x: &mut [f32], positive: f32, negative: f32) {
    const BETA: f32 = 0.5;
    let (above, below) = (softplus(positive), BETA + softplus(negative));
    for x in x {
        *x = if *x > 0.0 { above * *x * *x + BETA * *x } else { (x.min(-1e-6).exp_m1() - *x) * below + BETA * *x };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    /// By its series where that keeps its digits, by the continued fraction of the complement where it does not.
    fn erf_reference(x: f64) -> f64 {
        if x.abs() > 3.0 {
            let fraction = (1..60).rev().fold(x.abs(), |below, n| x.abs() + n as f64 / 2.0 / below);
            return x.signum() * (1.0 - (-x * x).exp() / (fraction * std::f64::consts::PI.sqrt()));
        }
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn reference(activation: Activation, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match activation {
            Activation::Silu => x * sigmoid(x),
            Activation::Gelu => 0.5 * x * (1.0 + erf_reference(x / 2f64.sqrt())),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
            }
            Activation::GeluQuick => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0),
            Activation::ReluSquared => x.max(0.0).powi(2),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => sigmoid(x),
            Activation::Identity => x,
            Activation::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Activation::ClampedGlu => x.min(7.0) * sigmoid(1.702 * x.min(7.0)),
        }
    }

    #[test]
    fn activations_agree_with_double_precision_on_both_instruction_sets() {
        use Activation::*;
        let xs: Vec<f32> = (-2003..2003).map(|i| i as f32 * 0.01).collect();
        for activation in
            [Silu, Gelu, GeluTanh, GeluQuick, Relu, ReluSquared, Tanh, Sigmoid, Identity, Softplus, ClampedGlu]
        {
            let (mut best, mut portable) = (xs.clone(), xs.clone());
            activate(activation, &mut best);
            activate_with(Portable, activation, &mut portable);
            for (i, &x) in xs.iter().enumerate() {
                let truth = reference(activation, x as f64) as f32;
                for (name, y) in [("best", best[i]), ("portable", portable[i])] {
                    let tolerance = 1e-6 * truth.abs().max(1.0);
                    assert!((y - truth).abs() <= tolerance, "{activation:?}({x}) = {y} by {name}, should be {truth}");
                }
            }
        }
    }

    #[test]
    fn a_clamped_gate_clamps_both_branches() {
        let (mut gate, linear) = ([9.0, 1.0, -9.0], [8.0, -8.0, 0.5]);
        activate_gated(Activation::ClampedGlu, &mut gate, &linear);
        for ((y, g), u) in gate.iter().zip([7.0f64, 1.0, -9.0]).zip([8.0, -6.0, 1.5]) {
            assert!((*y as f64 - g / (1.0 + (-1.702 * g).exp()) * u).abs() < 1e-5);
        }
    }

    #[test]
    fn xielu_is_a_parabola_above_zero_and_an_exponential_below() {
        let softplus = |x: f64| (1.0 + x.exp()).ln();
        let xs: Vec<f32> = (-600..600).map(|i| i as f32 * 0.01).chain([0.0, 1e-7, -1e-7, -1e-5, -40.0]).collect();
        for (positive, negative) in [(0.3f32, -0.7f32), (-2.0, 1.5)] {
            let mut ours = xs.clone();
            xielu(&mut ours, positive, negative);
            let (above, below) = (softplus(positive as f64), 0.5 + softplus(negative as f64));
            for (&x, ours) in xs.iter().zip(ours) {
                let x = x as f64;
                // Just below zero the exponential is taken at a millionth, as the reference does.
                let truth = 0.5 * x + if x > 0.0 { above * x * x } else { below * (x.min(-1e-6).exp_m1() - x) };
                assert!((ours as f64 - truth).abs() <= 1e-6 * truth.abs().max(1.0), "xielu({x}) = {ours}, not {truth}");
            }
        }
        // The control: the two numbers are not each other's.
        let (mut a, mut b) = ([-1.0, 1.0], [-1.0, 1.0]);
        xielu(&mut a, 0.3, -0.7);
        xielu(&mut b, -0.7, 0.3);
        assert!((a[0] - b[0]).abs() > 0.1 && (a[1] - b[1]).abs() > 0.1);
    }

    #[test]
    fn exp_ends_well_at_both_ends() {
        let mut out = [0.0; 8];
        // SAFETY: eight floats.
        let x = unsafe { Portable.load([f32::NEG_INFINITY, -1e30, -88.0, 0.0, 1.0, 88.0, 1e30, -87.0].as_ptr()) };
        Portable.store_part(&mut out, exp(Portable, x));
        assert_eq!(&out[..4], &[0.0, 0.0, 0.0, 1.0]);
        assert!(
            (out[4] - std::f32::consts::E).abs() < 1e-6 && out[5].is_finite() && out[6].is_finite() && out[7] > 0.0
        );
    }

    #[test]
    fn a_value_does_not_depend_on_its_place() {
        let x: Vec<f32> = (0..23).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut whole = x.clone();
        activate(Activation::GeluTanh, &mut whole);
        for i in 0..x.len() {
            let mut one = [x[i]];
            activate(Activation::GeluTanh, &mut one);
            assert_eq!(one[0].to_bits(), whole[i].to_bits());
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        use Activation::*;
        let all = [Silu, Gelu, GeluTanh, GeluQuick, Relu, ReluSquared, Tanh, Sigmoid, Identity, Softplus, ClampedGlu];
        for activation in all {
            for length in [1, 8, 21] {
                let mut x = vec![f32::NAN; length];
                activate(activation, &mut x);
                assert!(x.iter().all(|x| x.is_nan()), "{activation:?} of {length}: {x:?}");
                let (mut gate, linear) = (vec![0.5; length], vec![f32::NAN; length]);
                activate_gated(activation, &mut gate, &linear);
                assert!(gate.iter().all(|x| x.is_nan()), "{activation:?} of {length}, gated: {gate:?}");
            }
        }
    }
}
