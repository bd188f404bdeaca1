//! Products with weights: `dx = dy W`.

use super::walk::Walk;
use super::weights::{add_lines, add_outer};
use crate::backend::KeptValues;
use crate::backend::cpu::in_parts;
use crate::error::Result;
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::elementwise::dot;
use pellucid_kernels::{Matrix, matmul_turned};

pub(super) fn back(walk: &mut Walk, kind: &OpKind, gradient: Vec<f32>) {
    match kind {
        OpKind::MatMul { x, linear, .. } => {
            let matrix = walk.weights.matrix(linear.weight);
            product(walk, *x, matrix, &gradient);
            walk.give(gradient);
        }
        OpKind::BlockMatMul { x, linear, blocks, .. } => {
            let (weight, width) = (walk.weights.vector(linear.weight), walk.width(*x));
            let dim = width / blocks;
            let mut dx = walk.make(*x);
            in_parts(walk.pool, &mut dx, width, &|rows, part| {
                let dy = gradient[rows.start * width..rows.end * width].chunks_exact(dim);
                for (block, (dx, dy)) in part.chunks_exact_mut(dim).zip(dy).enumerate() {
                    let weight = &weight[block % blocks * dim * dim..][..dim * dim];
                    dx.iter_mut().zip(weight.chunks_exact(dim)).for_each(|(dx, weight)| *dx = dot(weight, dy));
                }
            });
            walk.give(gradient);
            walk.add(*x, dx);
        }
        _ => unreachable!("dispatched on the kind"),
    }
}

/// Adds `dy W` to an edge's gradient.
fn product(walk: &mut Walk, x: EdgeId, matrix: &Matrix, dy: &[f32]) {
    if !walk.flows(x) {
        return;
    }
    let given = walk.given(x);
    let add = given.is_some();
    let mut dx = given.unwrap_or_else(|| walk.make(x));
    matmul_turned(walk.pool, dy, matrix, add, &mut dx);
    walk.put(x, dx);
}

/// The output projection is the sum of its heads' shares: each has the gradient of the sum until somebody changes it.
pub(super) fn project_back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) -> Result<()> {
    let OpKind::Project { z, linear, heads, head_out, .. } = kind else { unreachable!("dispatched on the kind") };
    let matrix = walk.weights.matrix(linear.weight);
    add_lines(walk, linear.bias, &gradient);
    if !walk.touches(*head_out) {
        add_outer(walk, linear.weight, kept.value(*z), &gradient);
        product(walk, *z, matrix, &gradient);
        walk.give(gradient);
        return Ok(());
    }
    let (width, inner) = (matrix.rows(), matrix.cols());
    let mut shares = walk.make(*head_out);
    for (shares, gradient) in shares.chunks_exact_mut(heads * width).zip(gradient.chunks_exact(width)) {
        shares.chunks_exact_mut(width).for_each(|share| share.copy_from_slice(gradient));
    }
    walk.meet(*head_out, &mut shares)?;
    // Each head's columns of the product with its own share.
    let (dim, mut dz) = (inner / heads, walk.make(*z));
    let mut own = walk.make(*z);
    let mut upstream = gradient;
    for head in 0..*heads {
        for (upstream, shares) in upstream.chunks_exact_mut(width).zip(shares.chunks_exact(heads * width)) {
            upstream.copy_from_slice(&shares[head * width..][..width]);
        }
        matmul_turned(walk.pool, &upstream, matrix, false, &mut own);
        if walk.weight(linear.weight).is_some() {
            let outside = |place: usize| place % inner / dim != head;
            let mut read = kept.value(*z).to_vec();
            read.iter_mut().enumerate().filter(|(place, _)| outside(*place)).for_each(|(_, x)| *x = 0.0);
            add_outer(walk, linear.weight, &read, &upstream);
        }
        for (dz, own) in dz.chunks_exact_mut(inner).zip(own.chunks_exact(inner)) {
            dz[head * dim..][..dim].copy_from_slice(&own[head * dim..][..dim]);
        }
    }
    [upstream, own, shares].into_iter().for_each(|buffer| walk.give(buffer));
    walk.add(*z, dz);
    Ok(())
}
