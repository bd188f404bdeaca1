//! Derivatives of the activation functions, eight lanes at a time.

use crate::activation::{
    Activation, ClampedGlu, Gelu, GeluQuick, GeluTanh, Identity, Relu, ReluSquared, Sigmoid, Silu, Softplus, Tanh,
    Unary, choose_activation, erf, exp, sigmoid, tanh,
};
use crate::dispatch;
use crate::elementwise::SoftCap;
use crate::recurrence::softplus;
use crate::simd::{LANES, Simd};

/// A function whose derivative is known.
trait Slope: Unary {
    /// The derivative.
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V;

    /// The derivative of what the other branch of a gated MLP becomes.
    #[inline(always)]
    fn linear_slope<S: Simd>(&self, s: S, _: S::V) -> S::V {
        s.splat(1.0)
    }
}

/// `f + t x f (1 - f)` for `f = sigmoid(t x)`: the derivative of `x · sigmoid(t x)`.
#[inline(always)]
fn sigmoid_gated<S: Simd>(s: S, x: S::V, t: f32) -> S::V {
    let tx = s.mul(s.splat(t), x);
    let f = sigmoid(s, tx);
    s.fma(s.mul(tx, f), s.sub(s.splat(1.0), f), f)
}

/// 1 above a limit, else 0.
#[inline(always)]
fn above<S: Simd>(s: S, x: S::V, limit: f32) -> S::V {
    s.select_lt(s.splat(limit), x, s.splat(1.0), s.splat(0.0))
}

impl Slope for Silu {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        sigmoid_gated(s, x, 1.0)
    }
}
impl Slope for Gelu {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let below = s.fma(s.splat(0.5), erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), s.splat(0.5));
        // The normal density: e^(-x²/2) / √(2π)
        let density = s.mul(s.splat(0.398_942_3), exp(s, s.mul(s.splat(-0.5), s.mul(x, x))));
        s.fma(x, density, below)
    }
}
impl Slope for GeluTanh {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let (one, half, square) = (s.splat(1.0), s.splat(0.5), s.mul(x, x));
        let cubic = s.fma(s.mul(s.splat(0.044_715), square), x, x);
        let t = tanh(s, s.mul(s.splat(0.797_884_6), cubic));
        let inner = s.mul(s.splat(0.797_884_6), s.fma(s.splat(3.0 * 0.044_715), square, one));
        let rises = s.mul(s.mul(half, x), s.mul(s.sub(one, s.mul(t, t)), inner));
        s.fma(half, t, s.add(half, rises))
    }
}
impl Slope for GeluQuick {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        sigmoid_gated(s, x, 1.702)
    }
}
impl Slope for Relu {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        above(s, x, 0.0)
    }
}
impl Slope for ReluSquared {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.mul(s.splat(2.0), s.max(s.splat(0.0), x))
    }
}
impl Slope for Tanh {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let t = tanh(s, x);
        s.sub(s.splat(1.0), s.mul(t, t))
    }
}
impl Slope for Sigmoid {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let y = sigmoid(s, x);
        s.mul(y, s.sub(s.splat(1.0), y))
    }
}
impl Slope for Identity {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, _: S::V) -> S::V {
        s.splat(1.0)
    }
}
impl Slope for Softplus {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        sigmoid(s, x)
    }
}
impl Slope for ClampedGlu {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.select_lt(s.splat(7.0), x, s.splat(0.0), sigmoid_gated(s, x, 1.702))
    }

    #[inline(always)]
    fn linear_slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let zero = s.splat(0.0);
        s.select_lt(s.splat(7.0), x, zero, s.select_lt(x, s.splat(-7.0), zero, s.splat(1.0)))
    }
}
impl Slope for SoftCap {
    #[inline(always)]
    fn slope<S: Simd>(&self, s: S, x: S::V) -> S::V {
        Tanh.slope(s, s.div(x, s.splat(self.0)))
    }
}

/// `dy = dy · f'(x)` everywhere.
#[inline(always)]
fn map_slope<S: Simd>(s: S, f: &impl Slope, x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "a gradient has the shape of its value");
    for (x, dy) in x.chunks(LANES).zip(dy.chunks_mut(LANES)) {
        let y = s.mul(s.load_part(dy, 0.0), f.slope(s, s.load_part(x, 0.0)));
        s.store_part(dy, y);
    }
}

/// What both branches of a gated MLP become: the gradient of `f(gate) · linear` with respect to each.
#[inline(always)]
fn map_gate_slopes<S: Simd>(s: S, f: &impl Slope, dy: &[f32], gate: &mut [f32], linear: &mut [f32]) {
    assert!(dy.len() == gate.len() && dy.len() == linear.len(), "both branches of a gated MLP have one width");
    for ((dy, gate), linear) in dy.chunks(LANES).zip(gate.chunks_mut(LANES)).zip(linear.chunks_mut(LANES)) {
        let (d, x, y) = (s.load_part(dy, 0.0), s.load_part(gate, 0.0), s.load_part(linear, 0.0));
        s.store_part(gate, s.mul(s.mul(d, f.slope(s, x)), f.linear(s, y)));
        s.store_part(linear, s.mul(s.mul(d, f.apply(s, x)), f.linear_slope(s, y)));
    }
}

#[inline(always)]
fn activation_slope_with<S: Simd>(s: S, activation: Activation, x: &[f32], dy: &mut [f32]) {
    choose_activation!(activation, f => map_slope(s, f, x, dy))
}

#[inline(always)]
fn gate_slopes_with<S: Simd>(s: S, activation: Activation, dy: &[f32], gate: &mut [f32], linear: &mut [f32]) {
    choose_activation!(activation, f => map_gate_slopes(s, f, dy, gate, linear))
}

#[inline(always)]
fn soft_cap_slope_with<S: Simd>(s: S, cap: f32, x: &[f32], dy: &mut [f32]) {
    map_slope(s, &SoftCap(cap), x, dy);
}

dispatch! {
    /// `dy = dy · activation'(x)`
    pub fn activation_slope(activation: Activation, x: &[f32], dy: &mut [f32]) = activation_slope_with
}
dispatch! {
    /// From the gradient of `activation(gate) · linear` to those of both branches, which take the branches' place.
    pub fn gate_slopes(activation: Activation, dy: &[f32], gate: &mut [f32], linear: &mut [f32]) = gate_slopes_with
}
dispatch! {
    /// `dy = dy` times the derivative of `cap · tanh(x / cap)`.
    pub fn soft_cap_slope(cap: f32, x: &[f32], dy: &mut [f32]) = soft_cap_slope_with
}

/// `dy = dy` times the derivative of [`crate::activation::xielu`].
pub fn xielu_slope(positive: f32, negative: f32, x: &[f32], dy: &mut [f32]) {
    const BETA: f32 = 0.5;
    let (above, below) = (softplus(positive), BETA + softplus(negative));
    for (&x, dy) in x.iter().zip(dy) {
        // Just below zero the exponential is taken at a millionth and does not move.
        let exponential = if x < -1e-6 { x.exp() } else { 0.0 };
        *dy *= BETA + if x > 0.0 { 2.0 * above * x } else { (exponential - 1.0) * below };
    }
}

/// The derivative of [`softplus`].
pub fn softplus_slope(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::{activate, activate_gated, xielu};

    /// Central differences of f32 functions: good to a few thousandths of their size.
    fn difference(f: impl Fn(f32) -> f32, x: f32) -> f32 {
        let step = 1.0 / 64.0;
        (f(x + step) - f(x - step)) / (2.0 * step)
    }

    #[test]
    fn slopes_are_those_of_the_functions() {
        use Activation::*;
        let one = |activation: Activation| {
            move |x: f32| {
                let mut y = [x];
                activate(activation, &mut y);
                y[0]
            }
        };
        // Away from the corners, where a difference means nothing.
        let xs: Vec<f32> = (-60..60).map(|i| i as f32 * 0.15 + 0.071).collect();
        for activation in
            [Silu, Gelu, GeluTanh, GeluQuick, Relu, ReluSquared, Tanh, Sigmoid, Identity, Softplus, ClampedGlu]
        {
            let mut slopes = vec![2.0; xs.len()];
            activation_slope(activation, &xs, &mut slopes);
            for (&x, slope) in xs.iter().zip(slopes) {
                let truth = 2.0 * difference(one(activation), x);
                assert!((slope - truth).abs() < 2e-3, "{activation:?}'({x}) = {slope}, not {truth}");
            }
        }
        let mut slopes = vec![1.0; xs.len()];
        soft_cap_slope(3.0, &xs, &mut slopes);
        let capped = |x: f32| 3.0 * (x / 3.0).tanh();
        xs.iter().zip(slopes).for_each(|(&x, slope)| assert!((slope - difference(capped, x)).abs() < 1e-3));
        let mut slopes = vec![1.0; xs.len()];
        xielu_slope(0.3, -0.7, &xs, &mut slopes);
        let curved = |x: f32| {
            let mut y = [x];
            xielu(&mut y, 0.3, -0.7);
            y[0]
        };
        xs.iter().zip(slopes).for_each(|(&x, slope)| assert!((slope - difference(curved, x)).abs() < 2e-3));
    }

    #[test]
    fn both_branches_of_a_gate_get_their_slopes() {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::ClampedGlu] {
            let both = |gate: f32, linear: f32| {
                let mut y = [gate];
                activate_gated(activation, &mut y, &[linear]);
                y[0]
            };
            for (g, l) in [(0.7f32, -1.3f32), (-2.1, 0.4), (8.5, 2.0), (1.5, 9.0), (0.3, -8.0)] {
                let (mut gate, mut linear) = ([g], [l]);
                gate_slopes(activation, &[1.5], &mut gate, &mut linear);
                assert!((gate[0] - 1.5 * difference(|g| both(g, l), g)).abs() < 5e-3, "{activation:?} {g} {l}");
                assert!((linear[0] - 1.5 * difference(|l| both(g, l), l)).abs() < 5e-3, "{activation:?} {g} {l}");
            }
        }
    }
}
