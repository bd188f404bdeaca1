//! Ops on the CPU, each a few calls of `pellucid-kernels`.

mod arrange;
pub(crate) mod attention;
pub(crate) mod experts;
pub(crate) mod recurrence;

pub(crate) use arrange::differ_by;

use super::{Backend, Frame, Taps};
use crate::architecture::Temperature;
use crate::error::Result;
use crate::program::OpKind;
use pellucid_kernels::memory::Shared;
use pellucid_kernels::norm::{gain, normalise};
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
                let mut value = frame.make(*out);
                value.fill(0.0);
                frame.put(*out, value, taps)
            }
            OpKind::Lookup { table, row, out } => {
                let mut value = frame.make(*out);
                let table = frame.weights.matrix(*table);
                let places = frame.pass.tokens.iter().zip(&frame.pass.positions);
                for (line, (&token, &position)) in value.chunks_exact_mut(table.cols()).zip(places) {
                    table.row(row.of(token, position), line);
                }
                frame.put(*out, value, taps)
            }
            OpKind::Sinusoids { frequencies, offset, out } => {
                let mut value = frame.make(*out);
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
                let mut value = frame.make(*out);
                let (matrix, bias) = frame.weights.linear(linear);
                matmul(frame.pool, frame.value(*x), matrix, bias, &mut value);
                frame.put(*out, value, taps)
            }
            OpKind::BlockMatMul { x, linear, blocks, out } => {
                let mut value = frame.make(*out);
                let (weight, bias) =
                    (frame.weights.vector(linear.weight), linear.bias.map(|b| frame.weights.vector(b)));
                let (x, width) = (frame.value(*x), program.edge(*out).width);
                in_parts(frame.pool, &mut value, width, &|rows, part| {
                    let x = &x[rows.start * width..rows.end * width];
                    elementwise::block_diagonal(x, weight, bias, *blocks, width, part)
                });
                frame.put(*out, value, taps)
            }
            OpKind::Project { .. } => attention::project(index, frame, taps),
            OpKind::Attention { .. } => attention::attend(index, frame, taps),
            OpKind::Norm { .. } => norm(index, frame, taps),
            OpKind::Add { a, b, out } => {
                // The stream is added to in place unless somebody still needs it as it was.
                let in_place = frame.is_free_after(*a, index, taps);
                let mut value = if in_place { frame.reuse(*a, index, taps) } else { frame.make(*out) };
                let (a, b, width) = (frame.value(*a), frame.value(*b), program.edge(*out).width);
                in_parts(frame.pool, &mut value, width, &|rows, part| {
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
                gain(&mut value, Some(frame.weights.vector(*weight)), None, program.edge(*out).width);
                frame.put(*out, value, taps)
            }
            OpKind::Clip { x, by, out } => {
                let mut value = frame.reuse(*x, index, taps);
                value.iter_mut().for_each(|x| *x = x.clamp(-by, *by));
                frame.put(*out, value, taps)
            }
            OpKind::Slice { .. } | OpKind::Concat { .. } | OpKind::JoinHeads { .. } | OpKind::JoinNumber { .. } => {
                arrange::run(index, frame, taps)
            }
            OpKind::PairValues { .. } | OpKind::Differ { .. } => arrange::run(index, frame, taps),
            OpKind::Temper { x, temperature, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let width = program.edge(*out).width;
                for (row, &position) in value.chunks_exact_mut(width).zip(&frame.pass.positions) {
                    elementwise::scale(row, heat(temperature, position));
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
                in_parts(frame.pool, &mut value, 1, &|_, part| activation::xielu(part, positive, negative));
                frame.put(*out, value, taps)
            }
            OpKind::Scale { x, by, out } => {
                let mut value = frame.reuse(*x, index, taps);
                elementwise::scale(&mut value, *by);
                frame.put(*out, value, taps)
            }
            OpKind::SoftCap { x, cap, out } => {
                let mut value = frame.reuse(*x, index, taps);
                in_parts(frame.pool, &mut value, 1, &|_, part| elementwise::soft_cap(part, *cap));
                frame.put(*out, value, taps)
            }
            OpKind::Rotate { x, rope, heads, from, out } => {
                let mut value = frame.reuse(*x, index, taps);
                let (cos, sin) = frame.rotation(*rope);
                let spec = &program.architecture().ropes[*rope];
                let (pairs, width) = (spec.frequencies.len(), program.edge(*out).width);
                in_parts(frame.pool, &mut value, width, &|tokens, part| {
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
                in_parts(frame.pool, &mut value, 1, &|_, part| activation::activate(*activation, part));
                frame.put(*out, value, taps)
            }
            OpKind::Gate { gate, linear, activation, out } => {
                if program.edge(*gate).width != program.edge(*linear).width {
                    return narrow_gate(index, frame, taps);
                }
                let mut value = frame.reuse(*gate, index, taps);
                let linear = frame.value(*linear);
                in_parts(frame.pool, &mut value, 1, &|range, part| {
                    activation::activate_gated(*activation, part, &linear[range])
                });
                frame.put(*out, value, taps)
            }
            OpKind::Route { .. } => experts::route(index, frame, taps),
            OpKind::Experts { .. } => experts::run(index, frame, taps),
            OpKind::RoutedMatMul { .. } => experts::queries(index, frame, taps),
            OpKind::RoutedProject { .. } => experts::project(index, frame, taps),
            OpKind::Convolve { .. } => recurrence::convolve(index, frame, taps),
            OpKind::Step { .. } => recurrence::step(index, frame, taps),
            OpKind::Recur { .. } => recurrence::recur(index, frame, taps),
            OpKind::Lru { .. } => recurrence::lru(index, frame, taps),
            OpKind::Shift { .. } => recurrence::shift(index, frame, taps),
            OpKind::Wkv { .. } => recurrence::wkv(index, frame, taps),
            OpKind::Select { x, out } => {
                let value = frame.select(*x, *out);
                frame.put(*out, value, taps)
            }
        }
    }
}

/// What a temperature multiplies by at a position.
pub(crate) fn heat(temperature: &Temperature, position: usize) -> f32 {
    let steps = ((position as f32 + temperature.offset) / temperature.span).floor();
    1.0 + temperature.scale * (1.0 + steps).ln()
}

/// A gate of fewer numbers than what it gates: each serves its neighbours.
fn narrow_gate(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Gate { gate, linear, activation, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let (numbers, width) = (frame.program.edge(*gate).width, frame.program.edge(*linear).width);
    let mut gates = frame.copy(*gate);
    activation::activate(*activation, &mut gates);
    let mut value = frame.reuse(*linear, index, taps);
    value.chunks_exact_mut(width / numbers).zip(&gates).for_each(|(part, &by)| elementwise::scale(part, by));
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
        let mut value = frame.make(*out);
        let x = frame.value(*x);
        in_parts(frame.pool, &mut value, gains, &|rows, part| {
            let x = &x[rows.start * gains..rows.end * gains];
            // The scales of a few groups at a time live on the stack: nobody reads them.
            let mut scales = [0.0; 16];
            for (x, part) in x.chunks(16 * group).zip(part.chunks_mut(16 * group)) {
                normalise(norm.kind, norm.eps, x, group, part, &mut scales);
            }
            gain(part, weight, bias, gains);
        });
        return frame.put(*out, value, taps);
    }
    // Somebody looks inside: the same arithmetic, with the scale and the value before the gain put on their edges.
    let (mut value, mut scales) = (frame.make(*normed), frame.make(*scale));
    normalise(norm.kind, norm.eps, frame.value(*x), group, &mut value, &mut scales);
    let before = scales.clone();
    frame.put(*scale, scales, taps)?;
    for (part, (&was, &is)) in value.chunks_exact_mut(group).zip(before.iter().zip(frame.value(*scale))) {
        if was != is {
            elementwise::scale(part, was / is);
        }
    }
    frame.put(*normed, value, taps)?;
    let mut value = frame.copy(*normed);
    gain(&mut value, weight, bias, gains);
    frame.put(*out, value, taps)
}

/// Runs `f(range of rows, their values)` over rows of `width`, on all threads when there is enough to do.
pub(crate) fn in_parts(pool: &Pool, value: &mut [f32], width: usize, f: &(dyn Fn(Range<usize>, &mut [f32]) + Sync)) {
    const LEAST: usize = 16 * 1024;
    let rows = value.len() / width;
    // Parts of whole vectors: where a part ends never changes which lanes a number meets.
    let each = (LEAST / width).max(1).next_multiple_of(if width == 1 { 8 } else { 1 });
    if rows <= each {
        return f(0..rows, value);
    }
    let shared = Shared::new(value);
    pool.run(rows.div_ceil(each), &|task| {
        let range = task * each..((task + 1) * each).min(rows);
        // SAFETY: each task has its own rows.
        f(range.clone(), unsafe { shared.part(range.start * width, range.len() * width) });
    });
}
