//! The CPU backend: each op is a few calls into `pellucid-kernels`.

mod arrange;
pub(crate) mod attention;
pub(crate) mod experts;
pub(crate) mod recurrence;
pub(crate) mod sae;

pub(crate) use arrange::differential_lambda;

use super::{Backend, Frame, Taps};
use crate::architecture::PositionScale;
use crate::error::Result;
use crate::program::OpKind;
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::norm::{apply_gain, normalize};
use pellucid_kernels::recurrence::softplus;
use pellucid_kernels::{Pool, activation, elementwise, matmul, rope};
use std::ops::Range;

/// The CPU backend.
pub struct Cpu;

impl Backend for Cpu {
    fn execute(&self, index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
        let program = frame.program;
        match &program.ops()[index].kind {
            OpKind::Input { out } => {
                let mut value = frame.alloc(*out);
                value.fill(0.0);
                frame.put(*out, value, taps)
            }
            OpKind::Embed { table, row, out } => {
                let mut value = frame.alloc(*out);
                let table = frame.weights.matrix(*table);
                let tokens = frame.pass.tokens.iter().zip(&frame.pass.positions);
                for (line, (&token, &position)) in value.chunks_exact_mut(table.cols()).zip(tokens) {
                    table.row(row.index(token, position), line);
                }
                frame.put(*out, value, taps)
            }
            OpKind::Sinusoids { frequencies, offset, out } => {
                let mut value = frame.alloc(*out);
                value.fill(0.0);
                let (width, half) = (program.edge(*out).width, frequencies.len());
                for (row, position) in value.chunks_exact_mut(width).zip(&frame.pass.positions) {
                    for (i, frequency) in frequencies.iter().enumerate() {
                        let angle = ((position + offset) as f32 * frequency) as f64;
                        (row[i], row[half + i]) = (angle.sin() as f32, angle.cos() as f32);
                    }
                }
                frame.put(*out, value, taps)
            }
            OpKind::MatMul { x, linear, out } => {
                let mut value = frame.alloc(*out);
                let (matrix, bias) = frame.weights.linear(linear);
                matmul(frame.pool, frame.value(*x), matrix, bias, &mut value);
                frame.add_adapters(linear.weight, *x, &mut value);
                frame.put(*out, value, taps)
            }
            OpKind::BlockMatMul { x, linear, blocks, out } => {
                let mut value = frame.alloc(*out);
                let (weight, bias) =
                    (frame.weights.vector(linear.weight), linear.bias.map(|b| frame.weights.vector(b)));
                let (x, width) = (frame.value(*x), program.edge(*out).width);
                parallel_rows(frame.pool, &mut value, width, &|rows, part| {
                    let x = &x[rows.start * width..rows.end * width];
                    elementwise::block_diagonal(x, weight, bias, *blocks, width, part)
                });
                frame.put(*out, value, taps)
            }
            OpKind::Project { .. } => attention::project(index, frame, taps),
            OpKind::Attention { .. } => attention::attend(index, frame, taps),
            OpKind::Norm { .. } => norm(index, frame, taps),
            OpKind::Add { a, b, out } => {
                // Add to the residual stream in place unless its old value is still needed.
                let in_place = frame.is_free_after(*a, index, taps);
                let mut value = if in_place { frame.reuse(*a, index, taps) } else { frame.alloc(*out) };
                let (a, b, width) = (frame.value(*a), frame.value(*b), program.edge(*out).width);
                parallel_rows(frame.pool, &mut value, width, &|rows, part| {
                    let range = rows.start * width..rows.end * width;
                    if in_place {
                        elementwise::add(part, &b[range])
                    } else {
                        elementwise::sum(&a[range.clone()], &b[range], part)
                    }
                });
                frame.put(*out, value, taps)
            }
            OpKind::Gain { x, gain: weight, out } => {
                let mut value = frame.reuse(*x, index, taps);
                apply_gain(&mut value, Some(frame.weights.vector(*weight)), None, program.edge(*out).width);
                frame.put(*out, value, taps)
            }
            OpKind::Clip { x, by, out } => {
                let mut value = frame.reuse(*x, index, taps);
                value.iter_mut().for_each(|x| *x = x.clamp(-by, *by));
                frame.put(*out, value, taps)
            }
            OpKind::Slice { .. } | OpKind::Concat { .. } | OpKind::JoinHeads { .. } | OpKind::JoinConstant { .. } => {
                arrange::run(index, frame, taps)
            }
            OpKind::PairValues { .. } | OpKind::HeadDifference { .. } => arrange::run(index, frame, taps),
            OpKind::ScaleByPosition { x, scale, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let width = program.edge(*out).width;
                for (row, &position) in value.chunks_exact_mut(width).zip(&frame.pass.positions) {
                    elementwise::scale(row, position_scale(scale, position));
                }
                frame.put(*out, value, taps)
            }
            OpKind::KeyBias { x, rate, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let rate = frame.weights.vector(*rate);
                for row in value.chunks_exact_mut(rate.len()) {
                    row.iter_mut().zip(rate).for_each(|(x, rate)| *x = (rate * softplus(*x)).exp());
                }
                frame.put(*out, value, taps)
            }
            OpKind::Xielu { x, positive, negative, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let (positive, negative) = (frame.weights.vector(*positive)[0], frame.weights.vector(*negative)[0]);
                parallel_rows(frame.pool, &mut value, 1, &|_, part| activation::xielu(part, positive, negative));
                frame.put(*out, value, taps)
            }
            OpKind::Scale { x, by, out } => {
                let mut value = frame.reuse(*x, index, taps);
                elementwise::scale(&mut value, *by);
                frame.put(*out, value, taps)
            }
            OpKind::SoftCap { x, cap, out } => {
                let mut value = frame.reuse(*x, index, taps);
                parallel_rows(frame.pool, &mut value, 1, &|_, part| elementwise::soft_cap(part, *cap));
                frame.put(*out, value, taps)
            }
            OpKind::Rotate { x, rope, heads, from, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let (cos, sin) = frame.rotation(*rope);
                let spec = &program.architecture().ropes[*rope];
                let (pairs, width) = (spec.frequencies.len(), program.edge(*out).width);
                parallel_rows(frame.pool, &mut value, width, &|tokens, part| {
                    for (token, row) in tokens.zip(part.chunks_exact_mut(width)) {
                        let (cos, sin) = (&cos[token * pairs..][..pairs], &sin[token * pairs..][..pairs]);
                        row.chunks_exact_mut(width / heads)
                            .for_each(|head| rope::rotate(spec.style, &mut head[*from..], cos, sin));
                    }
                });
                frame.put(*out, value, taps)
            }
            OpKind::Activate { x, activation, out } => {
                let mut value = frame.reuse(*x, index, taps);
                parallel_rows(frame.pool, &mut value, 1, &|_, part| activation::activate(*activation, part));
                frame.put(*out, value, taps)
            }
            OpKind::Gate { gate, linear, activation, out } => {
                if program.edge(*gate).width != program.edge(*linear).width {
                    return broadcast_gate(index, frame, taps);
                }
                let mut value = frame.reuse(*gate, index, taps);
                let linear = frame.value(*linear);
                parallel_rows(frame.pool, &mut value, 1, &|range, part| {
                    activation::activate_gated(*activation, part, &linear[range])
                });
                frame.put(*out, value, taps)
            }
            OpKind::Route { .. } => experts::route(index, frame, taps),
            OpKind::Experts { .. } => experts::run(index, frame, taps),
            OpKind::RoutedMatMul { .. } => experts::queries(index, frame, taps),
            OpKind::RoutedProject { .. } => experts::project(index, frame, taps),
            OpKind::Convolve { .. } => recurrence::convolve(index, frame, taps),
            OpKind::TimeStep { .. } => recurrence::step(index, frame, taps),
            OpKind::Recur { .. } => recurrence::recur(index, frame, taps),
            OpKind::Lru { .. } => recurrence::lru(index, frame, taps),
            OpKind::Shift { .. } => recurrence::shift(index, frame, taps),
            OpKind::Wkv { .. } => recurrence::wkv(index, frame, taps),
            OpKind::Sae { .. } => sae::run(index, frame, taps),
            OpKind::Select { x, out } => {
                let value = frame.select(*x, *out);
                frame.put(*out, value, taps)
            }
        }
    }
}

/// The factor of queries at a position: `1 + scale · ln(1 + floor((position + offset) / span))`.
pub(crate) fn position_scale(scale: &PositionScale, position: usize) -> f32 {
    let steps = ((position as f32 + scale.offset) / scale.span).floor();
    1.0 + scale.scale * (1.0 + steps).ln()
}

/// A gate narrower than its input: each gate element scales a group of adjacent elements.
fn broadcast_gate(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Gate { gate, linear, activation, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let (gate_width, width) = (frame.program.edge(*gate).width, frame.program.edge(*linear).width);
    let mut gates = frame.copy(*gate);
    activation::activate(*activation, &mut gates);
    let mut value = frame.reuse(*linear, index, taps);
    value.chunks_exact_mut(width / gate_width).zip(&gates).for_each(|(part, &by)| elementwise::scale(part, by));
    frame.give_back(gates);
    frame.put(*out, value, taps)
}

fn norm(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Norm { x, norm, gain: weight, bias, group, scale, normed, out } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let group = *group;
    // Gains may differ between the groups of a token.
    let gains = weight.or(*bias).map_or(group, |w| frame.weights.vector(w).len());
    let (weight, bias) = (weight.map(|w| frame.weights.vector(w)), bias.map(|b| frame.weights.vector(b)));
    if !taps.touches(*scale) && !taps.touches(*normed) {
        let mut value = frame.alloc(*out);
        let x = frame.value(*x);
        parallel_rows(frame.pool, &mut value, gains, &|rows, part| {
            let x = &x[rows.start * gains..rows.end * gains];
            // No tap reads the scales: keep those of 16 groups at a time on the stack.
            let mut scales = [0.0; 16];
            for (x, part) in x.chunks(16 * group).zip(part.chunks_mut(16 * group)) {
                normalize(norm.kind, norm.eps, x, group, part, &mut scales);
            }
            apply_gain(part, weight, bias, gains);
        });
        return frame.put(*out, value, taps);
    }
    // A tap looks inside: same arithmetic, with the scale and the normalized value (before the
    // gain) put on their edges.
    let (mut value, mut scales) = (frame.alloc(*normed), frame.alloc(*scale));
    normalize(norm.kind, norm.eps, frame.value(*x), group, &mut value, &mut scales);
    let before = scales.clone();
    frame.put(*scale, scales, taps)?;
    for (part, (&was, &is)) in value.chunks_exact_mut(group).zip(before.iter().zip(frame.value(*scale))) {
        if was != is {
            elementwise::scale(part, was / is);
        }
    }
    frame.put(*normed, value, taps)?;
    let mut value = frame.copy(*normed);
    apply_gain(&mut value, weight, bias, gains);
    frame.put(*out, value, taps)
}

/// Runs `f(row range, their values)` over rows of `width` floats, on all threads if there are
/// enough of them.
pub(crate) fn parallel_rows(
    pool: &Pool,
    value: &mut [f32],
    width: usize,
    f: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
) {
    const MIN_PER_TASK: usize = 16 * 1024;
    let rows = value.len() / width;
    // Parts end at multiples of the SIMD width, so an element's lane (and its rounding) does not
    // depend on the split.
    let each = (MIN_PER_TASK / width).max(1).next_multiple_of(if width == 1 { 8 } else { 1 });
    if rows <= each {
        return f(0..rows, value);
    }
    let shared = DisjointMut::new(value);
    pool.run(rows.div_ceil(each), &|task| {
        let range = task * each..((task + 1) * each).min(rows);
        // SAFETY: each task has its own rows.
        f(range.clone(), unsafe { shared.part(range.start * width, range.len() * width) });
    });
}
