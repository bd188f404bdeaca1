//! Mixtures of experts: the choice is a constant, the weights of the chosen are not.

use super::walk::Walk;
use super::weights::{add_outer, linear as add_linear};
use crate::architecture::{ExpertWeights, Routing, Scores};
use crate::backend::KeptValues;
use crate::backend::cpu::experts::{Desk, Slots, best_and_close, choose, scores};
use crate::program::{OpKind, WeightId};
use pellucid_kernels::activation::{Activation, activate, activate_backward, activate_gated, activate_gated_backward};
use pellucid_kernels::attention::softmax_back;
use pellucid_kernels::elementwise::{add, dot, scale};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{matmul, matmul_turned};

/// From the weights of the chosen experts to the router's scores.
pub(super) fn route_back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Route { logits, chosen, routing, correction, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let mut dx = walk.zeros(*logits);
    let correction = correction.map(|weight| walk.weights.vector(weight));
    let experts = walk.width(*logits);
    let lines = kept.value(*logits).chunks_exact(experts).zip(gradient.chunks_exact(*chosen));
    for (dx, (logits, gradient)) in dx.chunks_exact_mut(experts).zip(lines) {
        match routing.scores {
            Scores::SparseMixer { tolerance } => sparse_mixer_back(logits, tolerance, gradient, dx),
            _ => choice_back(logits, routing, correction, gradient, dx),
        }
    }
    walk.give(gradient);
    walk.add(*logits, dx);
}

fn choice_back(logits: &[f32], routing: &Routing, correction: Option<&[f32]>, gradient: &[f32], dx: &mut [f32]) {
    let (mut shares, mut choices) = (vec![0.0; gradient.len()], vec![0.0; gradient.len()]);
    choose(logits, routing, correction, &mut shares, &mut choices, &mut Desk::default());
    let mut before = Vec::new();
    scores(logits, routing, &mut before);
    let picked: Vec<f32> = choices.iter().map(|&expert| before[expert as usize]).collect();
    let mut by_picked: Vec<f32> = gradient.iter().map(|g| g * routing.scale).collect();
    weights_back(routing.weights, &picked, &mut by_picked);
    choices.iter().zip(by_picked).for_each(|(&expert, g)| dx[expert as usize] = g);
    match routing.scores {
        Scores::Softmax => softmax_back(&before, dx),
        Scores::Sigmoid => activate_backward(Activation::Sigmoid, logits, dx),
        Scores::Raw | Scores::SparseMixer { .. } => {}
    }
}

/// From what the chosen scores became to the scores, in place.
fn weights_back(weights: ExpertWeights, scores: &[f32], gradient: &mut [f32]) {
    match weights {
        ExpertWeights::Scores => {}
        ExpertWeights::Shares { eps, least } => {
            let sum = scores.iter().sum::<f32>() + eps;
            let moves = if sum >= least { 1.0 } else { 0.0 };
            divided_back(sum.max(least), |_| moves, scores, gradient);
        }
        ExpertWeights::Normed { power } => {
            let sum: f32 = scores.iter().map(|score| score.abs().powf(power)).sum();
            let length = sum.powf(1.0 / power);
            let slope = |score: f32| score.signum() * (score.abs() / length).powf(power - 1.0);
            divided_back(length, slope, scores, gradient);
        }
        ExpertWeights::Softmax => {
            let mut shares = scores.to_vec();
            softmax(&mut shares, None);
            softmax_back(&shares, gradient);
        }
        ExpertWeights::Sigmoid { shares } => {
            if shares {
                let mut each = scores.to_vec();
                activate(Activation::Sigmoid, &mut each);
                divided_back(each.iter().sum(), |_| 1.0, &each, gradient);
            }
            activate_backward(Activation::Sigmoid, scores, gradient);
        }
    }
}

/// The gradient of `x / by`, where `by` moves with each `x` by its slope.
fn divided_back(by: f32, slope: impl Fn(f32) -> f32, x: &[f32], gradient: &mut [f32]) {
    let along = dot(gradient, x) / (by * by);
    gradient.iter_mut().zip(x).for_each(|(g, &x)| *g = *g / by - along * slope(x));
}

fn sparse_mixer_back(logits: &[f32], tolerance: f32, gradient: &[f32], dx: &mut [f32]) {
    let (mut left, mut close) = (logits.to_vec(), Vec::new());
    for g in gradient {
        let best = best_and_close(logits, tolerance, &left, &mut close);
        for (i, (dx, share)) in dx.iter_mut().zip(&close).enumerate() {
            *dx += g * close[best] * (if i == best { 1.0 } else { 0.0 } - share);
        }
        left[best] = f32::NEG_INFINITY;
    }
}

/// Each expert once more on the tokens that chose it, then back through it.
pub(super) fn experts_back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Experts { x, weights, indices, experts, activation, on_input, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, chosen) = (walk.width(*x), walk.width(*weights));
    let (input, shares, choices) = (kept.value(*x), kept.value(*weights), kept.value(*indices));
    let (mut dx, mut by_share) = (walk.zeros(*x), walk.zeros(*weights));
    let sorted = Slots::of(choices, experts.len());
    for (nth, expert) in experts.iter().enumerate() {
        let slots = sorted.of_expert(nth);
        if slots.is_empty() {
            continue;
        }
        let gather = |from: &[f32]| -> Vec<f32> {
            slots.iter().flat_map(|&slot| from[slot / chosen * width..][..width].iter().copied()).collect()
        };
        // The shares multiply what goes in or what comes out.
        let weigh = |lines: &mut [f32], width: usize| {
            lines.chunks_exact_mut(width).zip(slots).for_each(|(line, &slot)| scale(line, shares[slot]));
        };
        let (mut read, upstream) = (gather(input), gather(&gradient));
        if *on_input {
            weigh(&mut read, width);
        }
        let (weights, pool) = (walk.weights, walk.pool);
        let product = |linear, input: &[f32]| {
            let (matrix, bias) = weights.linear(linear);
            let mut out = vec![0.0; slots.len() * matrix.rows()];
            matmul(pool, input, matrix, bias, &mut out);
            out
        };
        let turned = |linear: &crate::program::Linear, upstream: &[f32]| {
            let matrix = weights.matrix(linear.weight);
            let mut out = vec![0.0; slots.len() * matrix.cols()];
            matmul_turned(pool, upstream, matrix, false, &mut out);
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
        let mut by_neurons = turned(&expert.down, &upstream);
        let mut weighed = upstream.clone();
        if !on_input {
            weigh(&mut weighed, width);
        }
        add_linear(walk, &expert.down, &neurons, &weighed);
        if !on_input {
            // A share's gradient is its expert's output along the upstream one: the neurons along theirs, and the bias.
            let bias = expert.down.bias.map(|bias| weights.vector(bias));
            let lines = neurons.chunks_exact(count).zip(by_neurons.chunks_exact(count));
            for ((&slot, (neurons, by)), upstream) in slots.iter().zip(lines).zip(upstream.chunks_exact(width)) {
                by_share[slot] = dot(neurons, by) + bias.map_or(0.0, |bias| dot(bias, upstream));
            }
            weigh(&mut by_neurons, count);
        }
        let mut by_read = match &mut gate {
            Some(gate) => {
                activate_gated_backward(*activation, &by_neurons, gate, &mut up);
                if let Some(linear) = &expert.gate {
                    add_linear(walk, linear, &read, gate);
                }
                add_linear(walk, &expert.up, &read, &up);
                let mut both = expert.gate.as_ref().map(|linear| turned(linear, gate)).unwrap_or_default();
                add(&mut both, &turned(&expert.up, &up));
                both
            }
            None => {
                activate_backward(*activation, &up, &mut by_neurons);
                add_linear(walk, &expert.up, &read, &by_neurons);
                turned(&expert.up, &by_neurons)
            }
        };
        if *on_input {
            for (&slot, by) in slots.iter().zip(by_read.chunks_exact(width)) {
                by_share[slot] = dot(by, &input[slot / chosen * width..][..width]);
            }
            weigh(&mut by_read, width);
        }
        for (&slot, by) in slots.iter().zip(by_read.chunks_exact(width)) {
            add(&mut dx[slot / chosen * width..][..width], by);
        }
    }
    walk.give(gradient);
    walk.add(*x, dx);
    walk.add(*weights, by_share);
}

/// For each slot `upstream(slot) · W` of its expert's weight, and for the weight what the slot has `read`, times its share.
fn routed_back(
    walk: &mut Walk,
    experts: &[WeightId],
    choices: &[f32],
    upstream: &dyn Fn(usize) -> Vec<f32>,
    read: &dyn Fn(usize) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let mut outputs = vec![Vec::new(); choices.len()];
    let sorted = Slots::of(choices, experts.len());
    for (nth, &expert) in experts.iter().enumerate() {
        let slots = sorted.of_expert(nth);
        let matrix = walk.weights.matrix(expert);
        let gathered: Vec<f32> = slots.iter().flat_map(|&slot| upstream(slot)).collect();
        let mut result = vec![0.0; slots.len() * matrix.cols()];
        matmul_turned(walk.pool, &gathered, matrix, false, &mut result);
        slots.iter().zip(result.chunks_exact(matrix.cols())).for_each(|(&slot, line)| outputs[slot] = line.to_vec());
        if walk.weight(expert).is_some() {
            let read: Vec<f32> = slots.iter().flat_map(|&slot| read(slot)).collect();
            add_outer(walk, expert, &read, &gathered);
        }
    }
    outputs
}

/// The heads of a slot, which stand apart: those that share a key head stand together.
fn heads_of(slot: usize, chosen: usize, heads: usize) -> impl Iterator<Item = usize> {
    (0..heads).map(move |head| slot / chosen * chosen * heads + head * chosen + slot % chosen)
}

pub(super) fn queries_back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::RoutedMatMul { x, indices, experts, heads, out } = kind else { unreachable!("dispatched on the kind") };
    let (width, chosen) = (walk.width(*x), walk.width(*indices));
    let dim = walk.width(*out) / chosen / heads;
    let upstream =
        |slot: usize| heads_of(slot, chosen, *heads).flat_map(|at| gradient[at * dim..][..dim].to_vec()).collect();
    let read = |slot: usize| kept.value(*x)[slot / chosen * width..][..width].to_vec();
    let mut dx = walk.zeros(*x);
    for (slot, by) in routed_back(walk, experts, kept.value(*indices), &upstream, &read).iter().enumerate() {
        add(&mut dx[slot / chosen * width..][..width], by);
    }
    walk.give(gradient);
    walk.add(*x, dx);
}

pub(super) fn project_back(walk: &mut Walk, kept: &KeptValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::RoutedProject { z, weights, indices, experts, heads, out, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, chosen) = (walk.width(*out), walk.width(*indices));
    let dim = walk.width(*z) / chosen / heads;
    let upstream = |slot: usize| gradient[slot / chosen * width..][..width].to_vec();
    let (mut dz, mut by_share) = (walk.make(*z), walk.make(*weights));
    let (input, shares) = (kept.value(*z), kept.value(*weights));
    let read = |slot: usize| {
        let numbers = heads_of(slot, chosen, *heads).flat_map(|at| &input[at * dim..][..dim]);
        numbers.map(|x| shares[slot] * x).collect()
    };
    for (slot, by) in routed_back(walk, experts, kept.value(*indices), &upstream, &read).iter().enumerate() {
        by_share[slot] = 0.0;
        for (at, by) in heads_of(slot, chosen, *heads).zip(by.chunks_exact(dim)) {
            by_share[slot] += dot(by, &input[at * dim..][..dim]);
            dz[at * dim..][..dim].iter_mut().zip(by).for_each(|(y, x)| *y = shares[slot] * x);
        }
    }
    walk.give(gradient);
    walk.add(*z, dz);
    walk.add(*weights, by_share);
}
