//! Gradients of weights: sums over all tokens, made only for those that somebody has asked for.
//!
//! Here are the ops whose weights meet what they read and what came back, number by number. Where the way to a weight lies inside an op,
//! its own file says so: `products.rs` for shares of heads, `norms.rs`, `attention.rs`, `experts.rs`, `recurrence.rs`.

use super::tape::Tape;
use super::walk::Walk;
use crate::program::{Linear, OpKind};
use crate::weights::WeightId;
use pellucid_kernels::activation::softplus_derivative;
use pellucid_kernels::elementwise::{add, dot};
use pellucid_kernels::recurrence::softplus;
use pellucid_kernels::{DType, Matrix, matmul};

/// What the gradient of an op's output says about its weights.
pub(super) fn back(walk: &mut Walk, tape: &Tape, kind: &OpKind, gradient: &[f32]) {
    match kind {
        OpKind::Lookup { table, row, .. } => {
            let (pass, width) = (walk.pass, walk.weights.matrix(*table).cols());
            let Some(sum) = walk.weight(*table) else { return };
            let places = pass.tokens.iter().zip(&pass.positions);
            for (line, (&token, &position)) in gradient.chunks_exact(width).zip(places) {
                add(&mut sum[row.of(token, position) * width..][..width], line);
            }
        }
        OpKind::MatMul { x, linear: weights, .. } => linear(walk, weights, tape.value(*x), gradient),
        OpKind::BlockMatMul { x, linear, blocks, .. } => {
            add_lines(walk, linear.bias, gradient);
            let dim = walk.width(*x) / blocks;
            let Some(sum) = walk.weight(linear.weight) else { return };
            let lines = tape.value(*x).chunks_exact(dim).zip(gradient.chunks_exact(dim));
            for (block, (x, dy)) in lines.enumerate() {
                let block = &mut sum[block % blocks * dim * dim..][..dim * dim];
                for (line, x) in block.chunks_exact_mut(dim).zip(x) {
                    line.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += x * dy);
                }
            }
        }
        OpKind::Norm { bias, .. } => add_lines(walk, *bias, gradient),
        OpKind::Gain { x, gain, .. } => add_products(walk, *gain, tape.value(*x), gradient),
        OpKind::KeyBias { x, rate, .. } => {
            let rates = walk.weights.vector(*rate);
            let numbers = tape.value(*x).iter().zip(gradient).zip(rates.iter().cycle());
            let by_rate: Vec<f32> =
                numbers.map(|((&x, dy), rate)| dy * (rate * softplus(x)).exp() * softplus(x)).collect();
            add_lines(walk, Some(*rate), &by_rate);
        }
        OpKind::Xielu { x, positive, negative, .. } => {
            let pairs = || tape.value(*x).iter().zip(gradient);
            let above: f32 = pairs().filter(|(x, _)| **x > 0.0).map(|(x, dy)| dy * x * x).sum();
            let below: f32 = pairs().filter(|(x, _)| **x <= 0.0).map(|(x, dy)| dy * (x.min(-1e-6).exp_m1() - x)).sum();
            for (weight, by) in [(*positive, above), (*negative, below)] {
                let slope = softplus_derivative(walk.weights.vector(weight)[0]);
                add_lines(walk, Some(weight), &[by * slope]);
            }
        }
        OpKind::Differ { x, weights, out, .. } => {
            let (width, halves) = (walk.width(*out), walk.width(*x));
            let lines = tape.value(*x).chunks_exact(halves).zip(gradient.chunks_exact(width));
            let by: f32 = lines.map(|(x, dy)| -dot(&x[width..], dy)).sum();
            for (a, b, sign) in [(0, 1, 1.0), (2, 3, -1.0)] {
                let (first, second) = (walk.weights.vector(weights[a]), walk.weights.vector(weights[b]));
                let slope = sign * by * dot(first, second).exp();
                for (own, other) in [(a, second), (b, first)] {
                    let share: Vec<f32> = other.iter().map(|x| slope * x).collect();
                    add_lines(walk, Some(weights[own]), &share);
                }
            }
        }
        OpKind::RoutedProject { bias, .. } => add_lines(walk, Some(*bias), gradient),
        _ => {}
    }
}

/// A projection's matrix and bias.
pub(super) fn linear(walk: &mut Walk, linear: &Linear, x: &[f32], dy: &[f32]) {
    add_lines(walk, linear.bias, dy);
    add_outer(walk, linear.weight, x, dy);
}

/// Adds `dyᵀ x` to the gradient of a matrix.
pub(super) fn add_outer(walk: &mut Walk, id: WeightId, x: &[f32], dy: &[f32]) {
    let (pool, matrix) = (walk.pool, walk.weights.matrix(id));
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let tokens = dy.len() / rows;
    let Some(sum) = walk.weight(id).filter(|_| tokens > 0) else { return };
    // The kernel of every other product, with the tokens as what is summed over.
    let column = |from: &[f32], width: usize, column: usize, out: &mut [f32]| {
        out.iter_mut().zip(from[column..].iter().step_by(width)).for_each(|(y, x)| *y = *x);
    };
    let mut turned = vec![0.0; rows * tokens];
    turned.chunks_exact_mut(tokens).enumerate().for_each(|(row, line)| column(dy, rows, row, line));
    let inputs = Matrix::pack(pool, cols, tokens, DType::F32, &|col, line| column(x, cols, col, line));
    let mut product = vec![0.0; rows * cols];
    matmul(pool, &turned, &inputs, None, &mut product);
    add(sum, &product);
}

/// Adds lines up to the gradient of a vector, as a bias has it.
pub(super) fn add_lines(walk: &mut Walk, id: Option<WeightId>, lines: &[f32]) {
    let Some(sum) = id.and_then(|id| walk.weight(id)) else { return };
    lines.chunks_exact(sum.len()).for_each(|line| add(sum, line));
}

/// Adds the products of two lists of lines up, as a gain has it.
pub(super) fn add_products(walk: &mut Walk, id: WeightId, x: &[f32], dy: &[f32]) {
    let Some(sum) = walk.weight(id) else { return };
    for (x, dy) in x.chunks_exact(sum.len()).zip(dy.chunks_exact(sum.len())) {
        sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
    }
}
