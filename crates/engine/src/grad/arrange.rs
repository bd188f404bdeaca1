//! Ops that move numbers: their gradients move back.

use super::walk::Walk;
use crate::backend::cpu::differ_by;
use crate::program::{EdgeId, OpKind};

pub(super) fn back(walk: &mut Walk, kind: &OpKind, gradient: Vec<f32>) {
    let program = walk.program;
    let width = |edge: EdgeId| program.edge(edge).width;
    match kind {
        OpKind::Slice { x, from, out } => {
            let mut dx = walk.given_or_zeros(*x);
            for (line, part) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                line[*from..from + part.len()].iter_mut().zip(part).for_each(|(y, g)| *y += g);
            }
            walk.put(*x, dx);
        }
        OpKind::Concat { parts, out } => {
            let mut from = 0;
            for &part in parts {
                let mut dx = walk.make(part);
                for (line, whole) in dx.chunks_exact_mut(width(part)).zip(gradient.chunks_exact(width(*out))) {
                    line.copy_from_slice(&whole[from..from + line.len()]);
                }
                walk.add(part, dx);
                from += width(part);
            }
        }
        OpKind::JoinHeads { x, tail, heads, out } => {
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            let mut dx = walk.make(*x);
            for (dx, joined) in dx.chunks_exact_mut(dim).zip(gradient.chunks_exact(joined)) {
                dx.copy_from_slice(&joined[..dim]);
            }
            walk.add(*x, dx);
            // One tail for all heads gets what each of them says.
            let mut dx = walk.zeros(*tail);
            let tails = width(*tail) / (joined - dim);
            for (line, whole) in dx.chunks_exact_mut(width(*tail)).zip(gradient.chunks_exact(width(*out))) {
                for (head, whole) in whole.chunks_exact(joined).enumerate() {
                    let line = &mut line[head % tails * (joined - dim)..][..joined - dim];
                    line.iter_mut().zip(&whole[dim..]).for_each(|(y, g)| *y += g);
                }
            }
            walk.add(*tail, dx);
        }
        OpKind::JoinNumber { x, heads, out, .. } => {
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            let mut dx = walk.make(*x);
            for (dx, joined) in dx.chunks_exact_mut(dim).zip(gradient.chunks_exact(joined)) {
                dx.copy_from_slice(&joined[..dim]);
            }
            walk.add(*x, dx);
        }
        OpKind::PairValues { x, heads, out } => {
            let (dim, half) = (width(*x) / heads, heads / 2);
            let mut dx = walk.zeros(*x);
            for (line, pairs) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                for (head, pair) in pairs.chunks_exact(2 * dim).enumerate() {
                    for (own, part) in [head % half, head % half + half].into_iter().zip(pair.chunks_exact(dim)) {
                        line[own * dim..][..dim].iter_mut().zip(part).for_each(|(y, g)| *y += g);
                    }
                }
            }
            walk.add(*x, dx);
        }
        OpKind::Differ { x, weights, start, out } => {
            let by = differ_by(walk.weights, weights, *start);
            let mut dx = walk.make(*x);
            for (line, g) in dx.chunks_exact_mut(width(*x)).zip(gradient.chunks_exact(width(*out))) {
                let (first, second) = line.split_at_mut(g.len());
                first.copy_from_slice(g);
                second.iter_mut().zip(g).for_each(|(y, g)| *y = -by * g);
            }
            walk.add(*x, dx);
        }
        OpKind::Select { x, out } => {
            let dx = walk.unselect(*x, *out, &gradient);
            walk.add(*x, dx);
        }
        _ => unreachable!("dispatched on the kind"),
    }
    walk.give(gradient);
}
