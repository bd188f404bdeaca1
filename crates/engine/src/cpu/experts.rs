//! Mixtures of experts: the choice, then the chosen experts on the tokens that chose them.

use crate::architecture::Routing;
use crate::error::Result;
use crate::exec::{Frame, Taps};
use crate::program::OpKind;
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{activation, matmul};

/// From router scores to chosen experts and their weights, largest score first.
pub(super) fn route(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Route { logits, chosen, routing, weights, indices } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let (mut shares, mut choices) = (frame.make(*weights), frame.make(*indices));
    let experts = frame.program.edge(*logits).width;
    let mut scores = vec![0.0; experts];
    let mut order: Vec<usize> = Vec::with_capacity(experts);
    for ((logits, shares), choices) in frame
        .value(*logits)
        .chunks_exact(experts)
        .zip(shares.chunks_exact_mut(*chosen))
        .zip(choices.chunks_exact_mut(*chosen))
    {
        let Routing::SoftmaxThenChoose { renormalise } = *routing;
        scores.copy_from_slice(logits);
        softmax(&mut scores, None);
        order.clear();
        order.extend(0..experts);
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        for ((share, choice), &expert) in shares.iter_mut().zip(choices.iter_mut()).zip(&order) {
            (*share, *choice) = (scores[expert], expert as f32);
        }
        if renormalise {
            let total: f32 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= total);
        }
    }
    frame.put(*weights, shares, taps)?;
    frame.put(*indices, choices, taps)
}

/// Each expert runs once on all tokens that chose it; a token adds up its experts in its own order of choice,
/// so its sum does not depend on its neighbours.
pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Experts { x, weights, indices, experts, activation, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    value.fill(0.0);
    let width = frame.program.edge(*out).width;
    let chosen = frame.program.edge(*weights).width;
    let (input, shares, choices) = (frame.value(*x), frame.value(*weights), frame.value(*indices));
    // The output of each choice of each token.
    let mut outputs = vec![0.0; choices.len() * width];
    for (number, expert) in experts.iter().enumerate() {
        let slots: Vec<usize> = (0..choices.len()).filter(|&slot| choices[slot] as usize == number).collect();
        if slots.is_empty() {
            continue;
        }
        let gathered: Vec<f32> =
            slots.iter().flat_map(|slot| &input[slot / chosen * width..][..width]).copied().collect();
        let (gate, up, down) =
            (frame.weights.matrix(expert.gate), frame.weights.matrix(expert.up), frame.weights.matrix(expert.down));
        let (mut neurons, mut linear) = (vec![0.0; slots.len() * gate.rows()], vec![0.0; slots.len() * up.rows()]);
        matmul(frame.pool, &gathered, gate, None, &mut neurons);
        matmul(frame.pool, &gathered, up, None, &mut linear);
        activation::activate_gated(*activation, &mut neurons, &linear);
        let mut result = vec![0.0; slots.len() * width];
        matmul(frame.pool, &neurons, down, None, &mut result);
        for (slot, result) in slots.iter().zip(result.chunks_exact(width)) {
            outputs[slot * width..][..width].copy_from_slice(result);
        }
    }
    for (slot, output) in outputs.chunks_exact(width).enumerate() {
        let sum = &mut value[slot / chosen * width..][..width];
        sum.iter_mut().zip(output).for_each(|(y, x)| *y += shares[slot] * x);
    }
    frame.put(*out, value, taps)
}
