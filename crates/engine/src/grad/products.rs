//! Backward passes of matrix products: `dx = dy W`.

use super::backward::BackwardPass;
use super::weights::{add_lines, add_outer};
use crate::adapter::updates;
use crate::backend::RetainedValues;
use crate::backend::cpu::parallel_rows;
use crate::error::Result;
use crate::program::{EdgeId, OpKind, WeightId};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::matmul_transposed;

pub(super) fn backward(ctx: &mut BackwardPass, kind: &OpKind, gradient: Vec<f32>) {
    match kind {
        OpKind::MatMul { x, linear, .. } => {
            product(ctx, *x, linear.weight, &gradient);
            ctx.release(gradient);
        }
        OpKind::BlockMatMul { x, linear, blocks, .. } => {
            let (weight, width) = (ctx.weights.vector(linear.weight), ctx.width(*x));
            let dim = width / blocks;
            let mut dx = ctx.alloc(*x);
            parallel_rows(ctx.pool, &mut dx, width, &|rows, part| {
                let dy = gradient[rows.start * width..rows.end * width].chunks_exact(dim);
                for (block, (dx, dy)) in part.chunks_exact_mut(dim).zip(dy).enumerate() {
                    let weight = &weight[block % blocks * dim * dim..][..dim * dim];
                    dx.iter_mut().zip(weight.chunks_exact(dim)).for_each(|(dx, weight)| *dx = dot(weight, dy));
                }
            });
            ctx.release(gradient);
            ctx.add_gradient(*x, dx);
        }
        _ => unreachable!("dispatched on the kind"),
    }
}

/// Adds `dy W` to an edge's gradient, with the updates of adapters.
fn product(ctx: &mut BackwardPass, x: EdgeId, weight: WeightId, dy: &[f32]) {
    if !ctx.requires_grad(x) {
        return;
    }
    let given = ctx.take_gradient(x);
    let add = given.is_some();
    let mut dx = given.unwrap_or_else(|| ctx.alloc(x));
    matmul_transposed(ctx.pool, dy, ctx.weights.matrix(weight), add, &mut dx);
    add_adapters(ctx, x, weight, dy, &mut dx);
    ctx.put_gradient(x, dx);
}

/// Adds the gradients through the updates of the rows' adapters to that of a projection's input.
fn add_adapters(ctx: &BackwardPass, x: EdgeId, weight: WeightId, dy: &[f32], dx: &mut [f32]) {
    for (update, tokens) in updates(ctx.adapters, ctx.pass, ctx.token_set(x), weight) {
        tokens.add_gradient(ctx.pool, update, dy, dx);
    }
}

/// Backward pass of the output projection. The output is the sum of the heads' contributions
/// (`head_out`), so each has the output's gradient, unless a tap edits it.
pub(super) fn project_backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Project { z, linear, heads, head_out, .. } = kind else { unreachable!("dispatched on the kind") };
    let matrix = ctx.weights.matrix(linear.weight);
    add_lines(ctx, linear.bias, &gradient);
    if !ctx.wants(*head_out) {
        add_outer(ctx, linear.weight, retained.value(*z), &gradient);
        product(ctx, *z, linear.weight, &gradient);
        ctx.release(gradient);
        return Ok(());
    }
    let (width, inner) = (matrix.rows(), matrix.cols());
    let mut shares = ctx.alloc(*head_out);
    for (shares, gradient) in shares.chunks_exact_mut(heads * width).zip(gradient.chunks_exact(width)) {
        shares.chunks_exact_mut(width).for_each(|share| share.copy_from_slice(gradient));
    }
    ctx.visit(*head_out, &mut shares)?;
    // Multiply each head's own gradient with the weight and keep the head's columns.
    let (dim, mut dz) = (inner / heads, ctx.alloc(*z));
    let mut own = ctx.alloc(*z);
    let mut upstream = gradient;
    for head in 0..*heads {
        for (upstream, shares) in upstream.chunks_exact_mut(width).zip(shares.chunks_exact(heads * width)) {
            upstream.copy_from_slice(&shares[head * width..][..width]);
        }
        matmul_transposed(ctx.pool, &upstream, matrix, false, &mut own);
        add_adapters(ctx, *z, linear.weight, &upstream, &mut own);
        if ctx.weight(linear.weight).is_some() {
            let outside = |index: usize| index % inner / dim != head;
            let mut read = retained.value(*z).to_vec();
            read.iter_mut().enumerate().filter(|(index, _)| outside(*index)).for_each(|(_, x)| *x = 0.0);
            add_outer(ctx, linear.weight, &read, &upstream);
        }
        for (dz, own) in dz.chunks_exact_mut(inner).zip(own.chunks_exact(inner)) {
            dz[head * dim..][..dim].copy_from_slice(&own[head * dim..][..dim]);
        }
    }
    [upstream, own, shares].into_iter().for_each(|buffer| ctx.release(buffer));
    ctx.add_gradient(*z, dz);
    Ok(())
}
