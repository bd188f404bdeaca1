//! Ops that treat each number by itself, or each token.

use super::tape::Tape;
use super::walk::Walk;
use super::weights::add_lines;
use crate::architecture::Activation;
use crate::cpu::{heat, in_parts};
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::activation::{
    activate, activate_backward, activate_gated_backward, soft_cap_backward, softplus_derivative, xielu_backward,
};
use pellucid_kernels::elementwise::{self, dot};
use pellucid_kernels::memory::Shared;
use pellucid_kernels::norm::gain;
use pellucid_kernels::recurrence::softplus;
use pellucid_kernels::rope::rotate;

pub(super) fn back(walk: &mut Walk, tape: &Tape, kind: &OpKind, mut gradient: Vec<f32>) {
    let pool = walk.pool;
    match kind {
        OpKind::Add { a, b, .. } => {
            if walk.flows(*a) && walk.flows(*b) {
                match walk.given(*b) {
                    Some(mut sum) => {
                        elementwise::add(&mut sum, &gradient);
                        walk.put(*b, sum);
                    }
                    None => {
                        let copy = walk.copy(&gradient);
                        walk.put(*b, copy);
                    }
                }
                walk.add(*a, gradient);
            } else {
                walk.add(if walk.flows(*a) { *a } else { *b }, gradient);
            }
        }
        OpKind::Scale { x, by, .. } => {
            elementwise::scale(&mut gradient, *by);
            walk.add(*x, gradient);
        }
        OpKind::Gain { x, gain: weight, .. } => {
            gain(&mut gradient, Some(walk.weights.vector(*weight)), None, walk.width(*x));
            walk.add(*x, gradient);
        }
        OpKind::SoftCap { x, cap, .. } => {
            let input = tape.value(*x);
            in_parts(pool, &mut gradient, 1, &|range, part| soft_cap_backward(*cap, &input[range], part));
            walk.add(*x, gradient);
        }
        OpKind::Clip { x, by, .. } => {
            let pairs = gradient.iter_mut().zip(tape.value(*x));
            pairs.filter(|(_, x)| x.abs() > *by).for_each(|(g, _)| *g = 0.0);
            walk.add(*x, gradient);
        }
        OpKind::Rotate { x, rope, heads, from, .. } => {
            // The transpose of a turn is the turn back.
            let (cos, sin) = tape.rotation(*rope);
            let back: Vec<f32> = sin.iter().map(|x| -x).collect();
            let spec = &walk.program.architecture().ropes[*rope];
            let (pairs, width) = (spec.frequencies.len(), walk.width(*x));
            in_parts(pool, &mut gradient, width, &|tokens, part| {
                for (token, row) in tokens.zip(part.chunks_exact_mut(width)) {
                    let (cos, back) = (&cos[token * pairs..][..pairs], &back[token * pairs..][..pairs]);
                    row.chunks_exact_mut(width / heads)
                        .for_each(|head| rotate(spec.style, &mut head[*from..], cos, back));
                }
            });
            walk.add(*x, gradient);
        }
        OpKind::Temper { x, temperature, .. } => {
            let width = walk.width(*x);
            for (row, &position) in gradient.chunks_exact_mut(width).zip(&walk.pass.positions) {
                elementwise::scale(row, heat(temperature, position));
            }
            walk.add(*x, gradient);
        }
        OpKind::KeyBias { x, rate, .. } => {
            let rate = walk.weights.vector(*rate);
            let lines = gradient.chunks_exact_mut(rate.len()).zip(tape.value(*x).chunks_exact(rate.len()));
            for (line, x) in lines {
                for ((g, &x), rate) in line.iter_mut().zip(x).zip(rate) {
                    *g *= (rate * softplus(x)).exp() * rate * softplus_derivative(x);
                }
            }
            walk.add(*x, gradient);
        }
        OpKind::Activate { x, activation, .. } => {
            let input = tape.value(*x);
            in_parts(pool, &mut gradient, 1, &|range, part| activate_backward(*activation, &input[range], part));
            walk.add(*x, gradient);
        }
        OpKind::Xielu { x, positive, negative, .. } => {
            let input = tape.value(*x);
            let (positive, negative) = (walk.weights.vector(*positive)[0], walk.weights.vector(*negative)[0]);
            in_parts(pool, &mut gradient, 1, &|range, part| xielu_backward(positive, negative, &input[range], part));
            walk.add(*x, gradient);
        }
        OpKind::Gate { gate, linear, activation, .. } => {
            gate_back(walk, tape, *gate, *linear, *activation, gradient);
        }
        OpKind::Step { x, bias, limits, .. } => {
            let (width, numbers) = (walk.width(*x), bias.map(|b| walk.weights.vector(b)));
            for (i, (g, &x)) in gradient.iter_mut().zip(tape.value(*x)).enumerate() {
                let x = x + numbers.map_or(0.0, |bias| bias[i % width]);
                let inside = (limits.0..=limits.1).contains(&softplus(x));
                *g *= if inside { softplus_derivative(x) } else { 0.0 };
            }
            add_lines(walk, *bias, &gradient);
            walk.add(*x, gradient);
        }
        _ => unreachable!("dispatched on the kind"),
    }
}

fn gate_back(
    walk: &mut Walk,
    tape: &Tape,
    gate: EdgeId,
    linear: EdgeId,
    activation: Activation,
    mut gradient: Vec<f32>,
) {
    let (numbers, width) = (walk.width(gate), walk.width(linear));
    if numbers == width {
        let (mut by_gate, mut by_linear) = (walk.copy(tape.value(gate)), walk.copy(tape.value(linear)));
        let shared = Shared::new(&mut by_linear);
        in_parts(walk.pool, &mut by_gate, 1, &|range, part| {
            // SAFETY: each part has its own range.
            let by_linear = unsafe { shared.part(range.start, range.len()) };
            activate_gated_backward(activation, &gradient[range], part, by_linear);
        });
        walk.give(gradient);
        walk.add(gate, by_gate);
        walk.add(linear, by_linear);
        return;
    }
    // A gate of fewer numbers serves its neighbours: they all pull on it.
    let each = width / numbers;
    let (mut gates, mut by_gate) = (walk.copy(tape.value(gate)), walk.make(gate));
    activate(activation, &mut gates);
    let parts = gradient.chunks_exact_mut(each).zip(tape.value(linear).chunks_exact(each));
    for ((by_gate, gate), (part, linear)) in by_gate.iter_mut().zip(&gates).zip(parts) {
        *by_gate = dot(part, linear);
        elementwise::scale(part, *gate);
    }
    activate_backward(activation, tape.value(gate), &mut by_gate);
    walk.give(gates);
    walk.add(gate, by_gate);
    walk.add(linear, gradient);
}
