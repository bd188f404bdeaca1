//! Weight gradients, summed over all tokens. Only requested ones are computed.
//!
//! This file has the ops whose weight gradient follows directly from the op's input and its
//! output's gradient. For weights inside an op see the op's file: `products.rs` (per-head output
//! projection), `norms.rs`, `attention.rs`, `experts.rs`, `recurrence.rs`.

use super::backward::BackwardPass;
use crate::backend::RetainedValues;
use crate::program::{Linear, OpKind};
use crate::weights::WeightId;
use pellucid_kernels::activation::softplus_derivative;
use pellucid_kernels::elementwise::{add, dot};
use pellucid_kernels::recurrence::softplus;
use pellucid_kernels::{DType, Matrix, matmul};

/// Accumulates the weight gradients of an op from its output's gradient.
pub(super) fn accumulate(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: &[f32]) {
    match kind {
        OpKind::Embed { table, row, .. } => {
            let (pass, width) = (ctx.pass, ctx.weights.matrix(*table).cols());
            let Some(sum) = ctx.weight(*table) else { return };
            let tokens = pass.tokens.iter().zip(&pass.positions);
            for (line, (&token, &position)) in gradient.chunks_exact(width).zip(tokens) {
                add(&mut sum[row.index(token, position) * width..][..width], line);
            }
        }
        OpKind::MatMul { x, linear: weights, .. } => add_linear(ctx, weights, retained.value(*x), gradient),
        OpKind::BlockMatMul { x, linear, blocks, .. } => {
            add_lines(ctx, linear.bias, gradient);
            let dim = ctx.width(*x) / blocks;
            let Some(sum) = ctx.weight(linear.weight) else { return };
            let lines = retained.value(*x).chunks_exact(dim).zip(gradient.chunks_exact(dim));
            for (block, (x, dy)) in lines.enumerate() {
                let block = &mut sum[block % blocks * dim * dim..][..dim * dim];
                for (line, x) in block.chunks_exact_mut(dim).zip(x) {
                    line.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += x * dy);
                }
            }
        }
        OpKind::Norm { bias, .. } => add_lines(ctx, *bias, gradient),
        OpKind::Gain { x, gain, .. } => add_products(ctx, *gain, retained.value(*x), gradient),
        OpKind::KeyBias { x, rate, .. } => {
            let rates = ctx.weights.vector(*rate);
            let elements = retained.value(*x).iter().zip(gradient).zip(rates.iter().cycle());
            let d_rate: Vec<f32> =
                elements.map(|((&x, dy), rate)| dy * (rate * softplus(x)).exp() * softplus(x)).collect();
            add_lines(ctx, Some(*rate), &d_rate);
        }
        OpKind::Xielu { x, positive, negative, .. } => {
            let pairs = || retained.value(*x).iter().zip(gradient);
            let above: f32 = pairs().filter(|(x, _)| **x > 0.0).map(|(x, dy)| dy * x * x).sum();
            let below: f32 = pairs().filter(|(x, _)| **x <= 0.0).map(|(x, dy)| dy * (x.min(-1e-6).exp_m1() - x)).sum();
            for (weight, by) in [(*positive, above), (*negative, below)] {
                let derivative = softplus_derivative(ctx.weights.vector(weight)[0]);
                add_lines(ctx, Some(weight), &[by * derivative]);
            }
        }
        OpKind::HeadDifference { x, weights, out, .. } => {
            let (width, halves) = (ctx.width(*out), ctx.width(*x));
            let lines = retained.value(*x).chunks_exact(halves).zip(gradient.chunks_exact(width));
            let by: f32 = lines.map(|(x, dy)| -dot(&x[width..], dy)).sum();
            for (a, b, sign) in [(0, 1, 1.0), (2, 3, -1.0)] {
                let (first, second) = (ctx.weights.vector(weights[a]), ctx.weights.vector(weights[b]));
                let derivative = sign * by * dot(first, second).exp();
                for (own, other) in [(a, second), (b, first)] {
                    let share: Vec<f32> = other.iter().map(|x| derivative * x).collect();
                    add_lines(ctx, Some(weights[own]), &share);
                }
            }
        }
        OpKind::RoutedProject { bias, .. } => add_lines(ctx, Some(*bias), gradient),
        _ => {}
    }
}

/// Accumulates the gradients of a linear layer's weight and bias. x `[tokens, inputs]`, dy
/// `[tokens, outputs]`
pub(super) fn add_linear(ctx: &mut BackwardPass, linear: &Linear, x: &[f32], dy: &[f32]) {
    add_lines(ctx, linear.bias, dy);
    add_outer(ctx, linear.weight, x, dy);
}

/// Adds `dyᵀ x` to the gradient of a weight matrix.
pub(super) fn add_outer(ctx: &mut BackwardPass, id: WeightId, x: &[f32], dy: &[f32]) {
    let (pool, matrix) = (ctx.pool, ctx.weights.matrix(id));
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let tokens = dy.len() / rows;
    let Some(sum) = ctx.weight(id).filter(|_| tokens > 0) else { return };
    // The ordinary matmul kernel, with tokens as the inner dimension.
    let column = |from: &[f32], width: usize, column: usize, out: &mut [f32]| {
        out.iter_mut().zip(from[column..].iter().step_by(width)).for_each(|(y, x)| *y = *x);
    };
    let mut transposed = vec![0.0; rows * tokens];
    transposed.chunks_exact_mut(tokens).enumerate().for_each(|(row, line)| column(dy, rows, row, line));
    let inputs = Matrix::pack(pool, cols, tokens, DType::F32, &|col, line| column(x, cols, col, line));
    let mut product = vec![0.0; rows * cols];
    matmul(pool, &transposed, &inputs, None, &mut product);
    add(sum, &product);
}

/// Adds the sum of `lines` `[tokens, len]` to the gradient of a vector, such as a bias.
pub(super) fn add_lines(ctx: &mut BackwardPass, id: Option<WeightId>, lines: &[f32]) {
    let Some(sum) = id.and_then(|id| ctx.weight(id)) else { return };
    lines.chunks_exact(sum.len()).for_each(|line| add(sum, line));
}

/// Adds `Σ x · dy` over tokens to the gradient of a vector, such as a gain.
pub(super) fn add_products(ctx: &mut BackwardPass, id: WeightId, x: &[f32], dy: &[f32]) {
    let Some(sum) = ctx.weight(id) else { return };
    for (x, dy) in x.chunks_exact(sum.len()).zip(dy.chunks_exact(sum.len())) {
        sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
    }
}
