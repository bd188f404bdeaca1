//! Backward pass of mixture of experts. The choice of experts is a constant, their weights are
//! differentiated.

use super::backward::BackwardPass;
use super::weights::{add_linear, add_outer};
use crate::architecture::{ExpertWeights, Routing, Scores};
use crate::backend::RetainedValues;
use crate::backend::cpu::experts::{ExpertSlots, RoutingScratch, best_and_close, choose, scores};
use crate::error::Result;
use crate::program::{OpKind, WeightId};
use pellucid_kernels::activation::{Activation, activate, activate_backward, activate_gated, activate_gated_backward};
use pellucid_kernels::attention::softmax_backward;
use pellucid_kernels::elementwise::{add, dot, scale};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{matmul, matmul_transposed};

/// Backward pass of routing: from the weights of the chosen experts to the router logits.
pub(super) fn route_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Route { logits, top_k, routing, correction, .. } = kind else { unreachable!("dispatched on the kind") };
    let mut dx = ctx.zeros(*logits);
    let correction = correction.map(|weight| ctx.weights.vector(weight));
    let experts = ctx.width(*logits);
    let lines = retained.value(*logits).chunks_exact(experts).zip(gradient.chunks_exact(*top_k));
    for (dx, (logits, gradient)) in dx.chunks_exact_mut(experts).zip(lines) {
        match routing.scores {
            Scores::SparseMixer { tolerance } => sparse_mixer_backward(logits, tolerance, gradient, dx),
            _ => choice_backward(logits, routing, correction, gradient, dx),
        }
    }
    ctx.release(gradient);
    ctx.add_gradient(*logits, dx);
}

fn choice_backward(logits: &[f32], routing: &Routing, correction: Option<&[f32]>, gradient: &[f32], dx: &mut [f32]) {
    let (mut shares, mut choices) = (vec![0.0; gradient.len()], vec![0.0; gradient.len()]);
    choose(logits, routing, correction, &mut shares, &mut choices, &mut RoutingScratch::default());
    let mut before = Vec::new();
    scores(logits, routing, &mut before);
    let picked: Vec<f32> = choices.iter().map(|&expert| before[expert as usize]).collect();
    let mut d_picked: Vec<f32> = gradient.iter().map(|g| g * routing.scale).collect();
    weights_backward(routing.weights, &picked, &mut d_picked);
    choices.iter().zip(d_picked).for_each(|(&expert, g)| dx[expert as usize] = g);
    match routing.scores {
        Scores::Softmax => softmax_backward(&before, dx),
        Scores::Sigmoid => activate_backward(Activation::Sigmoid, logits, dx),
        Scores::Raw | Scores::SparseMixer { .. } => {}
    }
}

/// From the gradient of the normalized weights to the gradient of the chosen scores, in place.
fn weights_backward(weights: ExpertWeights, scores: &[f32], gradient: &mut [f32]) {
    match weights {
        ExpertWeights::Scores => {}
        ExpertWeights::SumNormalized { eps, min_divisor } => {
            let sum = scores.iter().sum::<f32>() + eps;
            let d_sum = if sum >= min_divisor { 1.0 } else { 0.0 };
            divided_backward(sum.max(min_divisor), |_| d_sum, scores, gradient);
        }
        ExpertWeights::PNormNormalized { power } => {
            let sum: f32 = scores.iter().map(|score| score.abs().powf(power)).sum();
            let length = sum.powf(1.0 / power);
            let derivative = |score: f32| score.signum() * (score.abs() / length).powf(power - 1.0);
            divided_backward(length, derivative, scores, gradient);
        }
        ExpertWeights::Softmax => {
            let mut shares = scores.to_vec();
            softmax(&mut shares, None);
            softmax_backward(&shares, gradient);
        }
        ExpertWeights::Sigmoid { normalized } => {
            if normalized {
                let mut each = scores.to_vec();
                activate(Activation::Sigmoid, &mut each);
                divided_backward(each.iter().sum(), |_| 1.0, &each, gradient);
            }
            activate_backward(Activation::Sigmoid, scores, gradient);
        }
    }
}

/// The gradient of `x / by`, where `by` depends on each `x` with this derivative.
fn divided_backward(by: f32, derivative: impl Fn(f32) -> f32, x: &[f32], gradient: &mut [f32]) {
    let along = dot(gradient, x) / (by * by);
    gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = *g / by - along * derivative(x));
}

fn sparse_mixer_backward(logits: &[f32], tolerance: f32, gradient: &[f32], dx: &mut [f32]) {
    let (mut left, mut close) = (logits.to_vec(), Vec::new());
    for g in gradient {
        let best = best_and_close(logits, tolerance, &left, &mut close);
        for (i, (dx, share)) in dx.iter_mut().zip(&close).enumerate() {
            *dx += g * close[best] * (if i == best { 1.0 } else { 0.0 } - share);
        }
        left[best] = f32::NEG_INFINITY;
    }
}

/// Recomputes each expert on the tokens routed to it, then runs it backward.
pub(super) fn experts_backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    gradient: Vec<f32>,
) -> Result<()> {
    let OpKind::Experts { x, weights, indices, experts, activation, on_input, expert_out, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, top_k) = (ctx.width(*x), ctx.width(*weights));
    let (input, shares, choices) = (retained.value(*x), retained.value(*weights), retained.value(*indices));
    // The experts' outputs after their edits; empty if no tap touches them.
    let outputs = retained.value(*expert_out);
    let (mut dx, mut d_share) = (ctx.zeros(*x), ctx.zeros(*weights));
    // [tokens, slots, width]: the gradient of each expert's output, if a tap touches it.
    let d_outputs = match ctx.wants(*expert_out) {
        true => {
            let mut d_outputs = ctx.alloc(*expert_out);
            for (slot, d_output) in d_outputs.chunks_exact_mut(width).enumerate() {
                d_output.copy_from_slice(&gradient[slot / top_k * width..][..width]);
                if !on_input {
                    scale(d_output, shares[slot]);
                }
            }
            ctx.visit(*expert_out, &mut d_outputs)?;
            Some(d_outputs)
        }
        false => None,
    };
    let sorted = ExpertSlots::new(choices, experts.len());
    for (nth, expert) in experts.iter().enumerate() {
        let slots = sorted.of_expert(nth);
        if slots.is_empty() {
            continue;
        }
        let gather = |from: &[f32]| -> Vec<f32> {
            slots.iter().flat_map(|&slot| from[slot / top_k * width..][..width].iter().copied()).collect()
        };
        // The routing weights scale the expert's input or its output.
        let weigh = |lines: &mut [f32], width: usize| {
            lines.chunks_exact_mut(width).zip(slots).for_each(|(line, &slot)| scale(line, shares[slot]));
        };
        let (mut read, upstream) = (gather(input), gather(&gradient));
        if *on_input {
            weigh(&mut read, width);
        }
        let (weights, pool) = (ctx.weights, ctx.pool);
        let product = |linear, input: &[f32]| {
            let (matrix, bias) = weights.linear(linear);
            let mut out = vec![0.0; slots.len() * matrix.rows()];
            matmul(pool, input, matrix, bias, &mut out);
            out
        };
        let transposed = |linear: &crate::program::Linear, upstream: &[f32]| {
            let matrix = weights.matrix(linear.weight);
            let mut out = vec![0.0; slots.len() * matrix.cols()];
            matmul_transposed(pool, upstream, matrix, false, &mut out);
            out
        };
        let mut gate = expert.gate.as_ref().map(|gate| product(gate, &read));
        let mut up = product(&expert.up, &read);
        let mut neurons = gate.as_ref().unwrap_or(&up).clone();
        match &gate {
            Some(_) => activate_gated(*activation, &mut neurons, &up),
            None => activate(*activation, &mut neurons),
        }
        let count = neurons.len() / slots.len();
        let d_output = match &d_outputs {
            Some(d_outputs) => slots.iter().flat_map(|&slot| &d_outputs[slot * width..][..width]).copied().collect(),
            None => {
                let mut d_output = upstream.clone();
                if !on_input {
                    weigh(&mut d_output, width);
                }
                d_output
            }
        };
        add_linear(ctx, &expert.down, &neurons, &d_output);
        // d share = expert output · upstream
        let unweighted = (!on_input && outputs.is_empty()).then(|| transposed(&expert.down, &upstream));
        if let Some(by) = &unweighted {
            // = neurons · (upstream W) + bias · upstream
            let bias = expert.down.bias.map(|bias| weights.vector(bias));
            let lines = neurons.chunks_exact(count).zip(by.chunks_exact(count));
            for ((&slot, (neurons, by)), upstream) in slots.iter().zip(lines).zip(upstream.chunks_exact(width)) {
                d_share[slot] = dot(neurons, by) + bias.map_or(0.0, |bias| dot(bias, upstream));
            }
        } else if !on_input {
            for (&slot, upstream) in slots.iter().zip(upstream.chunks_exact(width)) {
                d_share[slot] = dot(&outputs[slot * width..][..width], upstream);
            }
        }
        let mut d_neurons = match unweighted {
            Some(mut by) if d_outputs.is_none() => {
                weigh(&mut by, count);
                by
            }
            _ => transposed(&expert.down, &d_output),
        };
        let mut d_read = match &mut gate {
            Some(gate) => {
                activate_gated_backward(*activation, &d_neurons, gate, &mut up);
                if let Some(linear) = &expert.gate {
                    add_linear(ctx, linear, &read, gate);
                }
                add_linear(ctx, &expert.up, &read, &up);
                let mut both = expert.gate.as_ref().map(|linear| transposed(linear, gate)).unwrap_or_default();
                add(&mut both, &transposed(&expert.up, &up));
                both
            }
            None => {
                activate_backward(*activation, &up, &mut d_neurons);
                add_linear(ctx, &expert.up, &read, &d_neurons);
                transposed(&expert.up, &d_neurons)
            }
        };
        if *on_input {
            for (&slot, by) in slots.iter().zip(d_read.chunks_exact(width)) {
                d_share[slot] = dot(by, &input[slot / top_k * width..][..width]);
            }
            weigh(&mut d_read, width);
        }
        for (&slot, by) in slots.iter().zip(d_read.chunks_exact(width)) {
            add(&mut dx[slot / top_k * width..][..width], by);
        }
    }
    d_outputs.into_iter().for_each(|d_outputs| ctx.release(d_outputs));
    ctx.release(gradient);
    ctx.add_gradient(*x, dx);
    ctx.add_gradient(*weights, d_share);
    Ok(())
}

/// Returns `upstream(slot) · W` for each slot, with W of its expert, and accumulates the weight
/// gradients from the inputs `read(slot)`.
fn routed_backward(
    ctx: &mut BackwardPass,
    experts: &[WeightId],
    choices: &[f32],
    upstream: &dyn Fn(usize) -> Vec<f32>,
    read: &dyn Fn(usize) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let mut outputs = vec![Vec::new(); choices.len()];
    let sorted = ExpertSlots::new(choices, experts.len());
    for (nth, &expert) in experts.iter().enumerate() {
        let slots = sorted.of_expert(nth);
        let matrix = ctx.weights.matrix(expert);
        let gathered: Vec<f32> = slots.iter().flat_map(|&slot| upstream(slot)).collect();
        let mut result = vec![0.0; slots.len() * matrix.cols()];
        matmul_transposed(ctx.pool, &gathered, matrix, false, &mut result);
        slots.iter().zip(result.chunks_exact(matrix.cols())).for_each(|(&slot, line)| outputs[slot] = line.to_vec());
        if ctx.weight(expert).is_some() {
            let read: Vec<f32> = slots.iter().flat_map(|&slot| read(slot)).collect();
            add_outer(ctx, expert, &read, &gathered);
        }
    }
    outputs
}

/// Indices of a slot's heads. Heads that share a KV head are adjacent, so a slot's heads are not.
fn heads_of(slot: usize, top_k: usize, heads: usize) -> impl Iterator<Item = usize> {
    (0..heads).map(move |head| slot / top_k * top_k * heads + head * top_k + slot % top_k)
}

pub(super) fn queries_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::RoutedMatMul { x, indices, experts, heads, out } = kind else { unreachable!("dispatched on the kind") };
    let (width, top_k) = (ctx.width(*x), ctx.width(*indices));
    let dim = ctx.width(*out) / top_k / heads;
    let upstream =
        |slot: usize| heads_of(slot, top_k, *heads).flat_map(|at| gradient[at * dim..][..dim].to_vec()).collect();
    let read = |slot: usize| retained.value(*x)[slot / top_k * width..][..width].to_vec();
    let mut dx = ctx.zeros(*x);
    for (slot, by) in routed_backward(ctx, experts, retained.value(*indices), &upstream, &read).iter().enumerate() {
        add(&mut dx[slot / top_k * width..][..width], by);
    }
    ctx.release(gradient);
    ctx.add_gradient(*x, dx);
}

pub(super) fn project_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::RoutedProject { z, weights, indices, experts, heads, out, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, top_k) = (ctx.width(*out), ctx.width(*indices));
    let dim = ctx.width(*z) / top_k / heads;
    let upstream = |slot: usize| gradient[slot / top_k * width..][..width].to_vec();
    let (mut dz, mut d_share) = (ctx.alloc(*z), ctx.alloc(*weights));
    let (input, shares) = (retained.value(*z), retained.value(*weights));
    let read = |slot: usize| {
        let elements = heads_of(slot, top_k, *heads).flat_map(|at| &input[at * dim..][..dim]);
        elements.map(|x| shares[slot] * x).collect()
    };
    for (slot, by) in routed_backward(ctx, experts, retained.value(*indices), &upstream, &read).iter().enumerate() {
        d_share[slot] = 0.0;
        for (at, by) in heads_of(slot, top_k, *heads).zip(by.chunks_exact(dim)) {
            d_share[slot] += dot(by, &input[at * dim..][..dim]);
            dz[at * dim..][..dim].iter_mut().zip(by).for_each(|(y, x)| *y = shares[slot] * x);
        }
    }
    ctx.release(gradient);
    ctx.add_gradient(*z, dz);
    ctx.add_gradient(*weights, d_share);
}
