//! The functions against double precision, their derivatives against central differences.

use super::forward::activate_with;
use super::*;
use crate::simd::Portable;

/// Error function: power series for small `x`, else the continued fraction of its complement.
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
    let xs: Vec<f32> = (-2003..2003).map(|i| i as f32 * 0.01).collect();
    for activation in Activation::ALL {
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
            // Just below zero the exponential is evaluated at -1e-6, as the reference does.
            let truth = 0.5 * x + if x > 0.0 { above * x * x } else { below * (x.min(-1e-6).exp_m1() - x) };
            assert!((ours as f64 - truth).abs() <= 1e-6 * truth.abs().max(1.0), "xielu({x}) = {ours}, not {truth}");
        }
    }
    // The control: the two parameters are not interchangeable.
    let (mut a, mut b) = ([-1.0, 1.0], [-1.0, 1.0]);
    xielu(&mut a, 0.3, -0.7);
    xielu(&mut b, -0.7, 0.3);
    assert!((a[0] - b[0]).abs() > 0.1 && (a[1] - b[1]).abs() > 0.1);
}

#[test]
fn exp_is_finite_at_both_ends() {
    let mut out = [0.0; 8];
    // SAFETY: eight floats.
    let x = unsafe { Portable.load([f32::NEG_INFINITY, -1e30, -88.0, 0.0, 1.0, 88.0, 1e30, -87.0].as_ptr()) };
    Portable.store_partial(&mut out, exp(Portable, x));
    assert_eq!(&out[..4], &[0.0, 0.0, 0.0, 1.0]);
    assert!((out[4] - std::f32::consts::E).abs() < 1e-6 && out[5].is_finite() && out[6].is_finite() && out[7] > 0.0);
}

#[test]
fn a_result_does_not_depend_on_the_index() {
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
fn nan_stays_nan() {
    for activation in Activation::ALL {
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

/// Central difference in f32: accurate to a few thousandths.
fn difference(f: impl Fn(f32) -> f32, x: f32) -> f32 {
    let step = 1.0 / 64.0;
    (f(x + step) - f(x - step)) / (2.0 * step)
}

fn value(activation: Activation, x: f32) -> f32 {
    let mut y = [x];
    activate(activation, &mut y);
    y[0]
}

#[test]
fn derivatives_agree_with_central_differences() {
    // Away from the kinks, where the derivative is undefined.
    let xs: Vec<f32> = (-60..60).map(|i| i as f32 * 0.15 + 0.071).collect();
    for activation in Activation::ALL {
        let mut derivatives = vec![2.0; xs.len()];
        activate_backward(activation, &xs, &mut derivatives);
        for (&x, derivative) in xs.iter().zip(derivatives) {
            let truth = 2.0 * difference(|x| value(activation, x), x);
            assert!((derivative - truth).abs() < 2e-3, "{activation:?}'({x}) = {derivative}, not {truth}");
        }
    }
    let mut derivatives = vec![1.0; xs.len()];
    soft_cap_backward(3.0, &xs, &mut derivatives);
    let capped = |x: f32| 3.0 * (x / 3.0).tanh();
    xs.iter().zip(derivatives).for_each(|(&x, derivative)| assert!((derivative - difference(capped, x)).abs() < 1e-3));
    let mut derivatives = vec![1.0; xs.len()];
    xielu_backward(0.3, -0.7, &xs, &mut derivatives);
    let curved = |x: f32| {
        let mut y = [x];
        xielu(&mut y, 0.3, -0.7);
        y[0]
    };
    xs.iter().zip(derivatives).for_each(|(&x, derivative)| assert!((derivative - difference(curved, x)).abs() < 2e-3));
}

#[test]
fn both_branches_of_a_gate_get_their_derivatives() {
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::ClampedGlu] {
        let both = |gate: f32, linear: f32| {
            let mut y = [gate];
            activate_gated(activation, &mut y, &[linear]);
            y[0]
        };
        for (g, l) in [(0.7f32, -1.3f32), (-2.1, 0.4), (8.5, 2.0), (1.5, 9.0), (0.3, -8.0)] {
            let (mut gate, mut linear) = ([g], [l]);
            activate_gated_backward(activation, &[1.5], &mut gate, &mut linear);
            assert!((gate[0] - 1.5 * difference(|g| both(g, l), g)).abs() < 5e-3, "{activation:?} {g} {l}");
            assert!((linear[0] - 1.5 * difference(|l| both(g, l), l)).abs() < 5e-3, "{activation:?} {g} {l}");
        }
    }
}

#[test]
fn names_are_unique_and_identify_their_function() {
    for activation in Activation::ALL {
        for name in activation.names() {
            assert_eq!(Activation::named(name), Some(activation));
        }
    }
    let names: Vec<&str> = Activation::all_names().collect();
    let unique: std::collections::HashSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len(), "{names:?}");
    assert_eq!(Activation::named("mosh"), None);
}
