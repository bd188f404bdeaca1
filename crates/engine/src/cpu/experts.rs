//! Mixtures of experts: the choice, then the chosen experts on the tokens that chose them.

use crate::architecture::{ExpertGroups, ExpertWeights, Routing, Scores};
use crate::error::Result;
use crate::exec::{Frame, Taps};
use crate::program::OpKind;
use pellucid_kernels::activation::{Activation, activate};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{Matrix, activation, matmul};

/// From router scores to chosen experts and their weights, largest score first.
pub(super) fn route(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Route { logits, chosen, routing, correction, weights, indices } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let (mut shares, mut choices) = (frame.make(*weights), frame.make(*indices));
    let experts = frame.program.edge(*logits).width;
    let correction = correction.map(|weight| frame.weights.vector(weight));
    let lines = frame.value(*logits).chunks_exact(experts);
    for ((logits, shares), choices) in
        lines.zip(shares.chunks_exact_mut(*chosen)).zip(choices.chunks_exact_mut(*chosen))
    {
        if let Scores::SparseMixer { tolerance } = routing.scores {
            sparse_mixer(logits, tolerance, shares, choices);
        } else {
            choose(logits, routing, correction, shares, choices);
        }
    }
    frame.put(*weights, shares, taps)?;
    frame.put(*indices, choices, taps)
}

/// What a token's scores are before the choice.
pub(crate) fn scores(logits: &[f32], routing: &Routing) -> Vec<f32> {
    let mut scores = logits.to_vec();
    match routing.scores {
        Scores::Softmax => softmax(&mut scores, None),
        Scores::Sigmoid => activate(Activation::Sigmoid, &mut scores),
        Scores::Raw | Scores::SparseMixer { .. } => {}
    }
    scores
}

/// One token's choice.
pub(crate) fn choose(
    logits: &[f32],
    routing: &Routing,
    correction: Option<&[f32]>,
    shares: &mut [f32],
    choices: &mut [f32],
) {
    let scores = scores(logits, routing);
    let mut judged = scores.clone();
    if let Some(correction) = correction {
        judged.iter_mut().zip(correction).for_each(|(score, by)| *score += by);
    }
    if let Some(groups) = routing.groups {
        keep_groups(groups, &mut judged);
    }
    let order = ranked(&judged);
    for ((share, choice), &expert) in shares.iter_mut().zip(choices.iter_mut()).zip(&order) {
        (*share, *choice) = (scores[expert], expert as f32);
    }
    match routing.weights {
        ExpertWeights::Scores => {}
        ExpertWeights::Shares { eps, least } => divide(shares, (shares.iter().sum::<f32>() + eps).max(least)),
        ExpertWeights::Normed { power } => {
            let sum: f32 = shares.iter().map(|share| share.abs().powf(power)).sum();
            divide(shares, sum.powf(1.0 / power));
        }
        ExpertWeights::Softmax => softmax(shares, None),
        ExpertWeights::Sigmoid { shares: divided } => {
            activate(Activation::Sigmoid, shares);
            if divided {
                divide(shares, shares.iter().sum());
            }
        }
    }
    if routing.scale != 1.0 {
        shares.iter_mut().for_each(|share| *share *= routing.scale);
    }
}

fn divide(shares: &mut [f32], by: f32) {
    shares.iter_mut().for_each(|share| *share /= by);
}

/// Indices by falling score, the earlier first among equals.
fn ranked(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order
}

/// Puts the experts of all but the best groups out of the question.
fn keep_groups(groups: ExpertGroups, scores: &mut [f32]) {
    let size = scores.len() / groups.count;
    let worth = |group: &[f32]| {
        let order = ranked(group);
        let taken = if groups.by_best_two { 2 } else { 1 };
        order.iter().take(taken).map(|&i| group[i]).sum::<f32>()
    };
    let worths: Vec<f32> = scores.chunks_exact(size).map(worth).collect();
    for &group in &ranked(&worths)[groups.kept..] {
        scores[group * size..][..size].fill(f32::NEG_INFINITY);
    }
}

/// Each choice is the best expert left, weighted by its softmax among those that come close to it.
fn sparse_mixer(logits: &[f32], tolerance: f32, shares: &mut [f32], choices: &mut [f32]) {
    let mut left = logits.to_vec();
    for (share, choice) in shares.iter_mut().zip(choices) {
        let (best, close) = best_and_close(logits, tolerance, &left);
        (*share, *choice) = (close[best], best as f32);
        left[best] = f32::NEG_INFINITY;
    }
}

/// The best expert left, and the softmax over those that come close to it.
pub(crate) fn best_and_close(logits: &[f32], tolerance: f32, left: &[f32]) -> (usize, Vec<f32>) {
    let best = ranked(left)[0];
    let top = left[best];
    let near = |i: usize| (top - logits[i]) / logits[i].abs().max(top) <= 2.0 * tolerance;
    let mut close: Vec<f32> = (0..left.len()).map(|i| if near(i) { left[i] } else { f32::NEG_INFINITY }).collect();
    softmax(&mut close, None);
    (best, close)
}

/// For each expert the slots (token by token, choice by choice) that chose it.
pub(crate) fn slots_of(choices: &[f32], experts: usize) -> Vec<Vec<usize>> {
    let mut slots = vec![Vec::new(); experts];
    for (slot, &choice) in choices.iter().enumerate() {
        slots[choice as usize].push(slot);
    }
    slots
}

/// Each expert runs once on all tokens that chose it; a token adds up its experts in its own order of choice,
/// so its sum does not depend on its neighbours.
pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Experts { x, weights, indices, experts, activation, on_input, out } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    value.fill(0.0);
    let width = frame.program.edge(*out).width;
    let chosen = frame.program.edge(*weights).width;
    let (input, shares, choices) = (frame.value(*x), frame.value(*weights), frame.value(*indices));
    // The output of each choice of each token.
    let mut outputs = vec![0.0; choices.len() * width];
    for (expert, slots) in experts.iter().zip(slots_of(choices, experts.len())) {
        if slots.is_empty() {
            continue;
        }
        let weigh = |slot: usize| if *on_input { shares[slot] } else { 1.0 };
        let gathered: Vec<f32> = slots
            .iter()
            .flat_map(|&slot| input[slot / chosen * width..][..width].iter().map(move |x| x * weigh(slot)))
            .collect();
        let product = |linear, input: &[f32]| {
            let (matrix, bias) = frame.weights.linear(linear);
            let mut out = vec![0.0; slots.len() * matrix.rows()];
            matmul(frame.pool, input, matrix, bias, &mut out);
            out
        };
        let neurons = match &expert.gate {
            Some(gate) => {
                let mut neurons = product(gate, &gathered);
                activation::activate_gated(*activation, &mut neurons, &product(&expert.up, &gathered));
                neurons
            }
            None => {
                let mut neurons = product(&expert.up, &gathered);
                activate(*activation, &mut neurons);
                neurons
            }
        };
        let result = product(&expert.down, &neurons);
        for (slot, result) in slots.iter().zip(result.chunks_exact(width)) {
            outputs[slot * width..][..width].copy_from_slice(result);
        }
    }
    for (slot, output) in outputs.chunks_exact(width).enumerate() {
        let share = if *on_input { 1.0 } else { shares[slot] };
        let sum = &mut value[slot / chosen * width..][..width];
        sum.iter_mut().zip(output).for_each(|(y, x)| *y += share * x);
    }
    frame.put(*out, value, taps)
}

/// Products of attention experts with what each slot reads.
fn routed(frame: &Frame, experts: &[usize], choices: &[f32], read: &dyn Fn(usize) -> Vec<f32>) -> Vec<Vec<f32>> {
    let mut outputs = vec![Vec::new(); choices.len()];
    for (&expert, slots) in experts.iter().zip(slots_of(choices, experts.len())) {
        if slots.is_empty() {
            continue;
        }
        let matrix: &Matrix = frame.weights.matrix(expert);
        let gathered: Vec<f32> = slots.iter().flat_map(|&slot| read(slot)).collect();
        let mut result = vec![0.0; slots.len() * matrix.rows()];
        matmul(frame.pool, &gathered, matrix, None, &mut result);
        for (&slot, result) in slots.iter().zip(result.chunks_exact(matrix.rows())) {
            outputs[slot] = result.to_vec();
        }
    }
    outputs
}

/// Queries by the chosen experts. An expert makes one head for each key head; the heads of a key head stand together.
pub(super) fn queries(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::RoutedMatMul { x, indices, experts, heads, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    let (width, chosen) = (frame.program.edge(*x).width, frame.program.edge(*indices).width);
    let dim = frame.program.edge(*out).width / chosen / heads;
    let (input, choices) = (frame.value(*x), frame.value(*indices));
    let read = |slot: usize| input[slot / chosen * width..][..width].to_vec();
    for (slot, made) in routed(frame, experts, choices, &read).iter().enumerate() {
        for (head, made) in made.chunks_exact(dim).enumerate() {
            let place = slot / chosen * chosen * heads + head * chosen + slot % chosen;
            value[place * dim..][..dim].copy_from_slice(made);
        }
    }
    frame.put(*out, value, taps)
}

/// Outputs by the chosen experts, each of its own heads.
pub(super) fn project(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::RoutedProject { z, weights, indices, experts, bias, heads, out } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    let (width, chosen) = (frame.program.edge(*out).width, frame.program.edge(*indices).width);
    let dim = frame.program.edge(*z).width / chosen / heads;
    let (z, shares, choices) = (frame.value(*z), frame.value(*weights), frame.value(*indices));
    let read = |slot: usize| {
        let heads = (0..*heads).map(|head| slot / chosen * chosen * heads + head * chosen + slot % chosen);
        heads.flat_map(|place| z[place * dim..][..dim].to_vec()).collect()
    };
    value.chunks_exact_mut(width).for_each(|row| row.fill(0.0));
    for (slot, made) in routed(frame, experts, choices, &read).iter().enumerate() {
        let sum = &mut value[slot / chosen * width..][..width];
        sum.iter_mut().zip(made).for_each(|(y, x)| *y += shares[slot] * x);
    }
    let bias = frame.weights.vector(*bias);
    value.chunks_exact_mut(width).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
    frame.put(*out, value, taps)
}
