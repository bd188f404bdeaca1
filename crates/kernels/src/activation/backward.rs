//! Derivatives of the activation functions, eight lanes at a time, and the loops that multiply a
//! gradient by one.

use super::{Activation, Derivative, SoftCap, Tanh, forward, with_activation};
use crate::dispatch;
use crate::recurrence;
use crate::simd::{LANES, Simd};

/// `f + t x f (1 - f)` for `f = sigmoid(t x)`: the derivative of `x · sigmoid(t x)`.
#[inline(always)]
fn sigmoid_gated<S: Simd>(s: S, x: S::V, t: f32) -> S::V {
    let tx = s.mul(s.splat(t), x);
    let f = forward::sigmoid(s, tx);
    s.fma(s.mul(tx, f), s.sub(s.splat(1.0), f), f)
}

/// 1 where `x` is above the limit, else 0.
#[inline(always)]
fn above<S: Simd>(s: S, x: S::V, limit: f32) -> S::V {
    s.select_lt(s.splat(limit), x, s.splat(1.0), s.splat(0.0))
}

#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    sigmoid_gated(s, x, 1.0)
}

#[inline(always)]
pub(super) fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    let below = s.fma(s.splat(0.5), forward::erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), s.splat(0.5));
    // The normal density: e^(-x²/2) / √(2π)
    let density = s.mul(s.splat(0.398_942_3), forward::exp(s, s.mul(s.splat(-0.5), s.mul(x, x))));
    s.fma(x, density, below)
}

#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let (one, half, square) = (s.splat(1.0), s.splat(0.5), s.mul(x, x));
    let cubic = s.fma(s.mul(s.splat(0.044_715), square), x, x);
    let t = forward::tanh(s, s.mul(s.splat(0.797_884_6), cubic));
    let inner = s.mul(s.splat(0.797_884_6), s.fma(s.splat(3.0 * 0.044_715), square, one));
    let rises = s.mul(s.mul(half, x), s.mul(s.sub(one, s.mul(t, t)), inner));
    s.fma(half, t, s.add(half, rises))
}

#[inline(always)]
pub(super) fn gelu_quick<S: Simd>(s: S, x: S::V) -> S::V {
    sigmoid_gated(s, x, 1.702)
}

#[inline(always)]
pub(super) fn relu<S: Simd>(s: S, x: S::V) -> S::V {
    above(s, x, 0.0)
}

#[inline(always)]
pub(super) fn relu_squared<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(s.splat(2.0), s.max(s.splat(0.0), x))
}

#[inline(always)]
pub(super) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let t = forward::tanh(s, x);
    s.sub(s.splat(1.0), s.mul(t, t))
}

#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let y = forward::sigmoid(s, x);
    s.mul(y, s.sub(s.splat(1.0), y))
}

#[inline(always)]
pub(super) fn identity<S: Simd>(s: S, _: S::V) -> S::V {
    s.splat(1.0)
}

#[inline(always)]
pub(super) fn softplus<S: Simd>(s: S, x: S::V) -> S::V {
    forward::sigmoid(s, x)
}

#[inline(always)]
pub(super) fn clamped_glu<S: Simd>(s: S, x: S::V) -> S::V {
    s.select_lt(s.splat(7.0), x, s.splat(0.0), sigmoid_gated(s, x, 1.702))
}

#[inline(always)]
pub(super) fn clamped_linear<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    s.select_lt(s.splat(7.0), x, zero, s.select_lt(x, s.splat(-7.0), zero, s.splat(1.0)))
}

impl Derivative for SoftCap {
    #[inline(always)]
    fn derivative<S: Simd>(&self, s: S, x: S::V) -> S::V {
        Tanh.derivative(s, s.div(x, s.splat(self.0)))
    }
}

/// Applies `dy = dy · f'(x)` elementwise.
#[inline(always)]
fn map_derivative<S: Simd>(s: S, f: &impl Derivative, x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "a gradient has the shape of its value");
    for (x, dy) in x.chunks(LANES).zip(dy.chunks_mut(LANES)) {
        let y = s.mul(s.load_partial(dy, 0.0), f.derivative(s, s.load_partial(x, 0.0)));
        s.store_partial(dy, y);
    }
}

/// Replaces both branches of a gated MLP by the gradient of `f(gate) · linear` with respect to
/// each.
#[inline(always)]
fn map_gated_derivatives<S: Simd>(s: S, f: &impl Derivative, dy: &[f32], gate: &mut [f32], linear: &mut [f32]) {
    assert!(dy.len() == gate.len() && dy.len() == linear.len(), "both branches of a gated MLP have one width");
    for ((dy, gate), linear) in dy.chunks(LANES).zip(gate.chunks_mut(LANES)).zip(linear.chunks_mut(LANES)) {
        let (d, x, y) = (s.load_partial(dy, 0.0), s.load_partial(gate, 0.0), s.load_partial(linear, 0.0));
        s.store_partial(gate, s.mul(s.mul(d, f.derivative(s, x)), f.linear(s, y)));
        s.store_partial(linear, s.mul(s.mul(d, f.apply(s, x)), f.linear_derivative(s, y)));
    }
}

#[inline(always)]
fn activate_backward_with<S: Simd>(s: S, activation: Activation, x: &[f32], dy: &mut [f32]) {
    with_activation!(activation, f => map_derivative(s, f, x, dy))
}

#[inline(always)]
fn activate_gated_backward_with<S: Simd>(
    s: S,
    activation: Activation,
    dy: &[f32],
    gate: &mut [f32],
    linear: &mut [f32],
) {
    with_activation!(activation, f => map_gated_derivatives(s, f, dy, gate, linear))
}

#[inline(always)]
fn soft_cap_backward_with<S: Simd>(s: S, cap: f32, x: &[f32], dy: &mut [f32]) {
    map_derivative(s, &SoftCap(cap), x, dy);
}

dispatch! {
    /// `dy = dy · activation'(x)`
    pub fn activate_backward(activation: Activation, x: &[f32], dy: &mut [f32]) = activate_backward_with
}
dispatch! {
    /// Backward pass of [`activate_gated`](super::activate_gated): `dy` is the gradient of its
    /// output; the gradients overwrite `gate` and `linear`.
    pub fn activate_gated_backward(activation: Activation, dy: &[f32], gate: &mut [f32], linear: &mut [f32]) = activate_gated_backward_with
}
dispatch! {
    /// Multiplies `dy` by the derivative of `cap · tanh(x / cap)`.
    pub fn soft_cap_backward(cap: f32, x: &[f32], dy: &mut [f32]) = soft_cap_backward_with
}

/// Multiplies `dy` by the derivative of [`crate::activation::xielu`].
pub fn xielu_backward(positive: f32, negative: f32, x: &[f32], dy: &mut [f32]) {
    const BETA: f32 = 0.5;
    let (above, below) = (recurrence::softplus(positive), BETA + recurrence::softplus(negative));
    for (&x, dy) in x.iter().zip(dy) {
        // Between -1e-6 and 0 the forward pass evaluates the exponential at -1e-6, a constant.
        let exponential = if x < -1e-6 { x.exp() } else { 0.0 };
        *dy *= BETA + if x > 0.0 { 2.0 * above * x } else { (exponential - 1.0) * below };
    }
}

/// The derivative of [`softplus`](recurrence::softplus).
pub fn softplus_derivative(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
