//! Backward passes of ops on single elements or single tokens.

use super::backward::BackwardPass;
use super::weights::add_lines;
use crate::architecture::Activation;
use crate::backend::RetainedValues;
use crate::backend::cpu::{parallel_rows, position_scale};
use crate::program::{EdgeId, OpKind};
use pellucid_kernels::activation::{
    activate, activate_backward, activate_gated_backward, soft_cap_backward, softplus_derivative, xielu_backward,
};
use pellucid_kernels::elementwise::{self, dot};
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::norm::apply_gain;
use pellucid_kernels::recurrence::softplus;
use pellucid_kernels::rope::rotate;

pub(super) fn backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, mut gradient: Vec<f32>) {
    let pool = ctx.pool;
    match kind {
        OpKind::Add { a, b, .. } => {
            if ctx.requires_grad(*a) && ctx.requires_grad(*b) {
                match ctx.take_gradient(*b) {
                    Some(mut sum) => {
                        elementwise::add(&mut sum, &gradient);
                        ctx.put_gradient(*b, sum);
                    }
                    None => {
                        let copy = ctx.copy(&gradient);
                        ctx.put_gradient(*b, copy);
                    }
                }
                ctx.add_gradient(*a, gradient);
            } else {
                ctx.add_gradient(if ctx.requires_grad(*a) { *a } else { *b }, gradient);
            }
        }
        OpKind::Scale { x, by, .. } => {
            elementwise::scale(&mut gradient, *by);
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Gain { x, gain: weight, .. } => {
            apply_gain(&mut gradient, Some(ctx.weights.vector(*weight)), None, ctx.width(*x));
            ctx.add_gradient(*x, gradient);
        }
        OpKind::SoftCap { x, cap, .. } => {
            let input = retained.value(*x);
            parallel_rows(pool, &mut gradient, 1, &|range, part| soft_cap_backward(*cap, &input[range], part));
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Clip { x, by, .. } => {
            let pairs = gradient.iter_mut().zip(retained.value(*x));
            pairs.filter(|(_, x)| x.abs() > *by).for_each(|(g, _)| *g = 0.0);
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Rotate { x, rope, heads, from, .. } => {
            // The transpose of a rotation is the rotation by the negative angle.
            let (cos, sin) = retained.rotation(*rope);
            let minus_sin: Vec<f32> = sin.iter().map(|x| -x).collect();
            let spec = &ctx.program.architecture().ropes[*rope];
            let (pairs, width) = (spec.frequencies.len(), ctx.width(*x));
            parallel_rows(pool, &mut gradient, width, &|tokens, part| {
                for (token, row) in tokens.zip(part.chunks_exact_mut(width)) {
                    let (cos, minus_sin) = (&cos[token * pairs..][..pairs], &minus_sin[token * pairs..][..pairs]);
                    row.chunks_exact_mut(width / heads)
                        .for_each(|head| rotate(spec.style, &mut head[*from..], cos, minus_sin));
                }
            });
            ctx.add_gradient(*x, gradient);
        }
        OpKind::ScaleByPosition { x, scale, .. } => {
            let width = ctx.width(*x);
            for (row, &position) in gradient.chunks_exact_mut(width).zip(&ctx.pass.positions) {
                elementwise::scale(row, position_scale(scale, position));
            }
            ctx.add_gradient(*x, gradient);
        }
        OpKind::KeyBias { x, rate, .. } => {
            let rate = ctx.weights.vector(*rate);
            let lines = gradient.chunks_exact_mut(rate.len()).zip(retained.value(*x).chunks_exact(rate.len()));
            for (line, x) in lines {
                for ((g, &x), rate) in line.iter_mut().zip(x).zip(rate) {
                    *g *= (rate * softplus(x)).exp() * rate * softplus_derivative(x);
                }
            }
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Activate { x, activation, .. } => {
            let input = retained.value(*x);
            parallel_rows(pool, &mut gradient, 1, &|range, part| activate_backward(*activation, &input[range], part));
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Xielu { x, positive, negative, .. } => {
            let input = retained.value(*x);
            let (positive, negative) = (ctx.weights.vector(*positive)[0], ctx.weights.vector(*negative)[0]);
            parallel_rows(pool, &mut gradient, 1, &|range, part| {
                xielu_backward(positive, negative, &input[range], part)
            });
            ctx.add_gradient(*x, gradient);
        }
        OpKind::Gate { gate, linear, activation, .. } => {
            gate_backward(ctx, retained, *gate, *linear, *activation, gradient);
        }
        OpKind::TimeStep { x, bias, limits, .. } => {
            let (width, values) = (ctx.width(*x), bias.map(|b| ctx.weights.vector(b)));
            for (i, (g, &x)) in gradient.iter_mut().zip(retained.value(*x)).enumerate() {
                let x = x + values.map_or(0.0, |bias| bias[i % width]);
                let inside = (limits.0..=limits.1).contains(&softplus(x));
                *g *= if inside { softplus_derivative(x) } else { 0.0 };
            }
            add_lines(ctx, *bias, &gradient);
            ctx.add_gradient(*x, gradient);
        }
        _ => unreachable!("dispatched on the kind"),
    }
}

fn gate_backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    gate: EdgeId,
    linear: EdgeId,
    activation: Activation,
    mut gradient: Vec<f32>,
) {
    let (gate_width, width) = (ctx.width(gate), ctx.width(linear));
    if gate_width == width {
        let (mut d_gate, mut d_linear) = (ctx.copy(retained.value(gate)), ctx.copy(retained.value(linear)));
        let shared = DisjointMut::new(&mut d_linear);
        parallel_rows(ctx.pool, &mut d_gate, 1, &|range, part| {
            // SAFETY: each part has its own range.
            let d_linear = unsafe { shared.part(range.start, range.len()) };
            activate_gated_backward(activation, &gradient[range], part, d_linear);
        });
        ctx.release(gradient);
        ctx.add_gradient(gate, d_gate);
        ctx.add_gradient(linear, d_linear);
        return;
    }
    // Each gate element scales a group of adjacent elements, so it sums their gradients.
    let each = width / gate_width;
    let (mut gates, mut d_gate) = (ctx.copy(retained.value(gate)), ctx.alloc(gate));
    activate(activation, &mut gates);
    let parts = gradient.chunks_exact_mut(each).zip(retained.value(linear).chunks_exact(each));
    for ((d_gate, gate), (part, linear)) in d_gate.iter_mut().zip(&gates).zip(parts) {
        *d_gate = dot(part, linear);
        elementwise::scale(part, *gate);
    }
    activate_backward(activation, retained.value(gate), &mut d_gate);
    ctx.release(gates);
    ctx.add_gradient(gate, d_gate);
    ctx.add_gradient(linear, gradient);
}
