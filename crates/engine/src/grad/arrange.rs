//! Backward passes of ops that rearrange elements.

use super::backward::BackwardPass;
use crate::backend::cpu::differential_lambda;
use crate::program::{EdgeId, OpKind};

pub(super) fn backward(ctx: &mut BackwardPass, kind: &OpKind, gradient: Vec<f32>) {
    let program = ctx.program;
    let width = |edge: EdgeId| program.edge(edge).width;
    match kind {
        OpKind::Slice { x, from, out } => {
            let mut dx = ctx.take_gradient_or_zeros(*x);
            for (line, part) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                line[*from..from + part.len()].iter_mut().zip(part).for_each(|(y, g)| *y += g);
            }
            ctx.put_gradient(*x, dx);
        }
        OpKind::Concat { parts, out } => {
            let mut from = 0;
            for &part in parts {
                let mut dx = ctx.alloc(part);
                for (line, whole) in dx.chunks_exact_mut(width(part)).zip(gradient.chunks_exact(width(*out))) {
                    line.copy_from_slice(&whole[from..from + line.len()]);
                }
                ctx.add_gradient(part, dx);
                from += width(part);
            }
        }
        OpKind::JoinHeads { x, tail, heads, out } => {
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            let mut dx = ctx.alloc(*x);
            for (dx, joined) in dx.chunks_exact_mut(dim).zip(gradient.chunks_exact(joined)) {
                dx.copy_from_slice(&joined[..dim]);
            }
            ctx.add_gradient(*x, dx);
            // A tail shared by all heads sums their gradients.
            let mut dx = ctx.zeros(*tail);
            let tails = width(*tail) / (joined - dim);
            for (line, whole) in dx.chunks_exact_mut(width(*tail)).zip(gradient.chunks_exact(width(*out))) {
                for (head, whole) in whole.chunks_exact(joined).enumerate() {
                    let line = &mut line[head % tails * (joined - dim)..][..joined - dim];
                    line.iter_mut().zip(&whole[dim..]).for_each(|(y, g)| *y += g);
                }
            }
            ctx.add_gradient(*tail, dx);
        }
        OpKind::JoinConstant { x, heads, out, .. } => {
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            let mut dx = ctx.alloc(*x);
            for (dx, joined) in dx.chunks_exact_mut(dim).zip(gradient.chunks_exact(joined)) {
                dx.copy_from_slice(&joined[..dim]);
            }
            ctx.add_gradient(*x, dx);
        }
        OpKind::PairValues { x, heads, out } => {
            let (dim, half) = (width(*x) / heads, heads / 2);
            let mut dx = ctx.zeros(*x);
            for (line, pairs) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                for (head, pair) in pairs.chunks_exact(2 * dim).enumerate() {
                    for (own, part) in [head % half, head % half + half].into_iter().zip(pair.chunks_exact(dim)) {
                        line[own * dim..][..dim].iter_mut().zip(part).for_each(|(y, g)| *y += g);
                    }
                }
            }
            ctx.add_gradient(*x, dx);
        }
        OpKind::HeadDifference { x, weights, lambda_init, out } => {
            let by = differential_lambda(ctx.weights, weights, *lambda_init);
            let mut dx = ctx.alloc(*x);
            for (line, g) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                let (first, second) = line.split_at_mut(g.len());
                first.copy_from_slice(g);
                second.iter_mut().zip(g).for_each(|(y, g)| *y = -by * g);
            }
            ctx.add_gradient(*x, dx);
        }
        OpKind::Select { x, out } => {
            let dx = ctx.scatter_selected(*x, *out, &gradient);
            ctx.add_gradient(*x, dx);
        }
        _ => unreachable!("dispatched on the kind"),
    }
    ctx.release(gradient);
}
