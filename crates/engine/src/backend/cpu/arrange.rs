//! Ops that rearrange elements: slices, concatenations, pairs of heads.

use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::program::{EdgeId, OpKind};
use crate::weights::{WeightId, Weights};

pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let width = |edge: EdgeId| program.edge(edge).width;
    match &program.ops()[index].kind {
        OpKind::Slice { x, from, out } => {
            let mut value = frame.alloc(*out);
            let lines = frame.value(*x).chunks_exact(width(*x));
            for (part, line) in value.chunks_exact_mut(width(*out)).zip(lines) {
                part.copy_from_slice(&line[*from..from + part.len()]);
            }
            frame.put(*out, value, taps)
        }
        OpKind::Concat { parts, out } => {
            let mut value = frame.alloc(*out);
            let mut from = 0;
            for &part in parts {
                let lines = frame.value(part).chunks_exact(width(part));
                for (whole, line) in value.chunks_exact_mut(width(*out)).zip(lines) {
                    whole[from..from + line.len()].copy_from_slice(line);
                }
                from += width(part);
            }
            frame.put(*out, value, taps)
        }
        OpKind::JoinHeads { x, tail, heads, out } => {
            let mut value = frame.alloc(*out);
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            let lines = frame.value(*x).chunks_exact(width(*x)).zip(frame.value(*tail).chunks_exact(width(*tail)));
            for (out, (line, tail)) in value.chunks_exact_mut(width(*out)).zip(lines) {
                let tails = tail.chunks_exact(joined - dim).cycle();
                for ((out, head), tail) in out.chunks_exact_mut(joined).zip(line.chunks_exact(dim)).zip(tails) {
                    out[..dim].copy_from_slice(head);
                    out[dim..].copy_from_slice(tail);
                }
            }
            frame.put(*out, value, taps)
        }
        OpKind::JoinConstant { x, constant, heads, out } => {
            let mut value = frame.alloc(*out);
            let (dim, joined) = (width(*x) / heads, width(*out) / heads);
            for (out, head) in value.chunks_exact_mut(joined).zip(frame.value(*x).chunks_exact(dim)) {
                out[..dim].copy_from_slice(head);
                out[dim..].fill(*constant);
            }
            frame.put(*out, value, taps)
        }
        OpKind::PairValues { x, heads, out } => {
            let mut value = frame.alloc(*out);
            let (dim, half) = (width(*x) / heads, heads / 2);
            let lines = frame.value(*x).chunks_exact(width(*x));
            for (out, line) in value.chunks_exact_mut(width(*out)).zip(lines) {
                for (head, pair) in out.chunks_exact_mut(2 * dim).enumerate() {
                    let first = head % half;
                    pair[..dim].copy_from_slice(&line[first * dim..][..dim]);
                    pair[dim..].copy_from_slice(&line[(first + half) * dim..][..dim]);
                }
            }
            frame.put(*out, value, taps)
        }
        OpKind::HeadDifference { x, weights, lambda_init, out } => {
            let mut value = frame.alloc(*out);
            let by = differential_lambda(frame.weights, weights, *lambda_init);
            let lines = frame.value(*x).chunks_exact(width(*x));
            for (out, line) in value.chunks_exact_mut(width(*out)).zip(lines) {
                let (first, second) = line.split_at(out.len());
                out.iter_mut().zip(first.iter().zip(second)).for_each(|(y, (a, b))| *y = a - by * b);
            }
            frame.put(*out, value, taps)
        }
        _ => unreachable!("dispatched on the kind"),
    }
}

/// λ of differential attention, the factor of the second half of the heads: `exp(w0·w1) −
/// exp(w2·w3) + start`.
pub(crate) fn differential_lambda(weights: &Weights, learned: &[WeightId; 4], lambda_init: f32) -> f32 {
    let product = |a: usize, b: usize| -> f32 {
        weights.vector(learned[a]).iter().zip(weights.vector(learned[b])).map(|(a, b)| a * b).sum()
    };
    product(0, 1).exp() - product(2, 3).exp() + lambda_init
}
