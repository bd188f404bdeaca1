//! Math functions of the oracle.

use super::Tokens;
use pellucid_engine::architecture::Activation;

pub fn map(x: &Tokens, f: impl Fn(f64) -> f64) -> Tokens {
    x.iter().map(|x| x.iter().map(|&x| f(x)).collect()).collect()
}

pub fn add(a: &Tokens, b: &Tokens) -> Tokens {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|x| (x - top).exp()).sum();
    x.iter().map(|x| (x - top).exp() / total).collect()
}

pub fn soft_cap(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| cap as f64 * (x / cap as f64).tanh())
}

pub fn activate(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::GeluQuick => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => sigmoid(x),
        Activation::Identity => x,
        Activation::Softplus => softplus(x),
        Activation::ClampedGlu => x.min(7.0) * sigmoid(1.702 * x.min(7.0)),
    }
}

pub fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    if x.abs() > 4.0 { x.signum() } else { sum * 2.0 / std::f64::consts::PI.sqrt() }
}

/// `ln(1 + eˣ)`
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Indices in order of descending value.
pub fn argsort_descending(x: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    order
}

/// Rounds to the nearest bf16, ties to even.
pub fn round_to_bf16(x: f64) -> f64 {
    if x == 0.0 {
        return x;
    }
    let unit = 2f64.powi(x.abs().log2().floor() as i32 - 7);
    (x / unit).round_ties_even() * unit
}

/// Elementwise product.
pub fn times(a: &Tokens, b: &Tokens) -> Tokens {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a * b).collect()).collect()
}
