//! Mixture of experts: routing, then each expert on the tokens routed to it.

use crate::architecture::{ExpertGroups, ExpertWeights, Routing, Scores};
use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::program::{EdgeId, Linear, OpKind, WeightId};
use pellucid_kernels::activation::{Activation, activate};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{activation, matmul};
use std::cell::RefCell;

/// Top-k routing: from router logits `[tokens, experts]` to the chosen experts and their weights,
/// `[tokens, chosen]`, largest score first.
pub(super) fn route(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::Route { logits, top_k, routing, correction, weights, indices } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let (mut shares, mut choices) = (frame.alloc(*weights), frame.alloc(*indices));
    let experts = frame.program.edge(*logits).width;
    let correction = correction.map(|weight| frame.weights.vector(weight));
    let lines = frame.value(*logits).chunks_exact(experts);
    for ((logits, shares), choices) in lines.zip(shares.chunks_exact_mut(*top_k)).zip(choices.chunks_exact_mut(*top_k))
    {
        SCRATCH.with_borrow_mut(|scratch| match routing.scores {
            Scores::SparseMixer { tolerance } => sparse_mixer(logits, tolerance, shares, choices, scratch),
            _ => choose(logits, routing, correction, shares, choices, scratch),
        });
    }
    // Indices first: taps on the weights may select by expert.
    frame.put(*indices, choices, taps)?;
    frame.put(*weights, shares, taps)
}

/// Scratch buffers of the routing, reused from token to token.
#[derive(Default)]
pub(crate) struct RoutingScratch {
    scores: Vec<f32>,
    ranking: Vec<f32>,
    group_scores: Vec<f32>,
    slots: ExpertSlots,
}

thread_local! {
    static SCRATCH: RefCell<RoutingScratch> = RefCell::default();
}

/// Computes a token's router scores from its logits.
pub(crate) fn scores(logits: &[f32], routing: &Routing, scores: &mut Vec<f32>) {
    scores.clear();
    scores.extend_from_slice(logits);
    match routing.scores {
        Scores::Softmax => softmax(scores, None),
        Scores::Sigmoid => activate(Activation::Sigmoid, scores),
        Scores::Raw | Scores::SparseMixer { .. } => {}
    }
}

/// Routes one token: writes the chosen experts and their weights.
pub(crate) fn choose(
    logits: &[f32],
    routing: &Routing,
    correction: Option<&[f32]>,
    shares: &mut [f32],
    choices: &mut [f32],
    scratch: &mut RoutingScratch,
) {
    scores(logits, routing, &mut scratch.scores);
    scratch.ranking.clear();
    // NaN sorts first, as in torch. The sign is normalized because `take_argmax` marks chosen
    // experts with -NaN.
    scratch.ranking.extend(scratch.scores.iter().map(|score| if score.is_nan() { f32::NAN } else { *score }));
    if let Some(correction) = correction {
        // A logit of minus infinity excludes an expert, whatever its correction.
        for ((score, by), logit) in scratch.ranking.iter_mut().zip(correction).zip(logits) {
            *score = if *logit == f32::NEG_INFINITY { f32::NEG_INFINITY } else { *score + by };
        }
    }
    if let Some(groups) = routing.groups {
        keep_groups(groups, &mut scratch.ranking, &mut scratch.group_scores);
    }
    for (share, choice) in shares.iter_mut().zip(choices.iter_mut()) {
        let expert = take_argmax(&mut scratch.ranking);
        (*share, *choice) = (scratch.scores[expert], expert as f32);
    }
    match routing.weights {
        ExpertWeights::Scores => {}
        ExpertWeights::SumNormalized { eps, min_divisor } => {
            divide(shares, (shares.iter().sum::<f32>() + eps).max(min_divisor))
        }
        ExpertWeights::PNormNormalized { power } => {
            let sum: f32 = shares.iter().map(|share| share.abs().powf(power)).sum();
            divide(shares, sum.powf(1.0 / power));
        }
        ExpertWeights::Softmax => softmax(shares, None),
        ExpertWeights::Sigmoid { normalized } => {
            activate(Activation::Sigmoid, shares);
            if normalized {
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

/// The index of the largest score; the first one among equals.
fn argmax(scores: &[f32]) -> usize {
    // `max_by` returns the last among equals, hence `rev`.
    (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or_default()
}

/// Returns the argmax and excludes it: -NaN sorts below everything, minus infinity included.
fn take_argmax(scores: &mut [f32]) -> usize {
    let best = argmax(scores);
    scores[best] = -f32::NAN;
    best
}

/// Group-limited routing: masks the experts of all but the best groups.
fn keep_groups(groups: ExpertGroups, scores: &mut [f32], group_scores: &mut Vec<f32>) {
    let size = scores.len() / groups.count;
    let group_score = |group: &[f32]| {
        let first = argmax(group);
        let second = (0..group.len()).rev().filter(|&i| i != first).max_by(|&a, &b| group[a].total_cmp(&group[b]));
        group[first] + second.filter(|_| groups.by_top_two).map_or(0.0, |second| group[second])
    };
    group_scores.clear();
    group_scores.extend(scores.chunks_exact(size).map(group_score));
    (0..groups.top_groups).for_each(|_| _ = take_argmax(group_scores));
    // Groups that were taken are NaN: those are kept.
    for (group, group_score) in scores.chunks_exact_mut(size).zip(group_scores) {
        if !group_score.is_nan() {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// SparseMixer routing: each choice is the best remaining expert, weighted by a softmax over the
/// experts close to it.
fn sparse_mixer(logits: &[f32], tolerance: f32, shares: &mut [f32], choices: &mut [f32], scratch: &mut RoutingScratch) {
    let (left, close) = (&mut scratch.ranking, &mut scratch.scores);
    left.clear();
    left.extend_from_slice(logits);
    for (share, choice) in shares.iter_mut().zip(choices) {
        let best = best_and_close(logits, tolerance, left, close);
        (*share, *choice) = (close[best], best as f32);
        left[best] = f32::NEG_INFINITY;
    }
}

/// Returns the best remaining expert; `close` becomes the softmax over the experts close to it.
pub(crate) fn best_and_close(logits: &[f32], tolerance: f32, left: &[f32], close: &mut Vec<f32>) -> usize {
    let best = argmax(left);
    let top = left[best];
    let near = |i: usize| (top - logits[i]) / logits[i].abs().max(top) <= 2.0 * tolerance;
    close.clear();
    close.extend((0..left.len()).map(|i| if near(i) { left[i] } else { f32::NEG_INFINITY }));
    softmax(close, None);
    best
}

/// The slots routed to each expert. Slot `token * chosen + rank` is the `rank`-th choice of a
/// token.
#[derive(Default)]
pub(crate) struct ExpertSlots {
    /// Slots, grouped by expert.
    order: Vec<usize>,
    /// For each expert the end of its group in `order`.
    ends: Vec<usize>,
}

impl ExpertSlots {
    pub fn new(choices: &[f32], experts: usize) -> ExpertSlots {
        let mut slots = ExpertSlots::default();
        slots.assign(choices, experts);
        slots
    }

    /// Recomputes the groups for other choices, reusing the allocations.
    fn assign(&mut self, choices: &[f32], experts: usize) {
        self.ends.clear();
        self.ends.resize(experts, 0);
        choices.iter().for_each(|&choice| self.ends[choice as usize] += 1);
        let mut end = 0;
        self.ends.iter_mut().for_each(|count| {
            end += *count;
            *count = end - *count;
        });
        // Counting sort: each expert's start advances to its end.
        self.order.resize(choices.len(), 0);
        for (slot, &choice) in choices.iter().enumerate() {
            let next = &mut self.ends[choice as usize];
            self.order[*next] = slot;
            *next += 1;
        }
    }

    /// The slots routed to an expert, in ascending order.
    pub fn of_expert(&self, expert: usize) -> &[usize] {
        let from = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.order[from..self.ends[expert]]
    }
}

/// Runs each expert once on all tokens routed to it. A token sums its experts in the order of its
/// own choices, so its result does not depend on the other tokens.
pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let mut scratch = SCRATCH.take();
    let outputs = expert_outputs(index, frame, &mut scratch.slots);
    SCRATCH.set(scratch);
    let OpKind::Experts { weights, on_input, expert_out, out, .. } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    if !taps.touches(*expert_out) {
        weighted_sum(&outputs, frame.value(*weights), *on_input, &mut value);
        frame.give_back(outputs);
        return frame.put(*out, value, taps);
    }
    frame.put(*expert_out, outputs, taps)?;
    weighted_sum(frame.value(*expert_out), frame.value(*weights), *on_input, &mut value);
    frame.put(*out, value, taps)
}

/// Sums the experts' outputs `[tokens, slots, width]`, each times its weight `[tokens, slots]`
/// (unless the weight has scaled the expert's input), to `[tokens, width]`.
fn weighted_sum(outputs: &[f32], shares: &[f32], on_input: bool, sums: &mut [f32]) {
    sums.fill(0.0);
    if shares.is_empty() {
        return;
    }
    let width = outputs.len() / shares.len();
    let top_k = outputs.len() / sums.len();
    for (slot, output) in outputs.chunks_exact(width).enumerate() {
        let share = if on_input { 1.0 } else { shares[slot] };
        let sum = &mut sums[slot / top_k * width..][..width];
        sum.iter_mut().zip(output).for_each(|(y, x)| *y += share * x);
    }
}

/// Runs the experts; returns each slot's output, `[tokens, slots, width]`.
fn expert_outputs(index: usize, frame: &mut Frame, sorted: &mut ExpertSlots) -> Vec<f32> {
    let OpKind::Experts { x, weights, indices, experts, activation, on_input, expert_out, out } =
        &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let width = frame.program.edge(*out).width;
    let top_k = frame.program.edge(*weights).width;
    sorted.assign(frame.value(*indices), experts.len());
    let (weights_of, pool) = (frame.weights, frame.pool);
    let rows = |linear: &Linear| weights_of.matrix(linear.weight).rows();
    let inner = experts.iter().map(|expert| rows(&expert.up)).max().unwrap_or(0);
    // A token chooses an expert at most once, unless all its scores were infinite or a plan has
    // replaced its choices.
    let slots = frame.value(*indices).len();
    let most = (0..experts.len()).map(|expert| sorted.of_expert(expert).len()).fold(slots / top_k, usize::max);
    // The output of each slot, and scratch buffers for one expert.
    let mut outputs = frame.alloc(*expert_out);
    let mut gathered = frame.scratch(most * width);
    let (mut neurons, mut linear) = (frame.scratch(most * inner), frame.scratch(most * inner));
    let (input, shares) = (frame.value(*x), frame.value(*weights));
    let product = |linear: &Linear, input: &[f32], out: &mut [f32]| {
        let (matrix, bias) = weights_of.linear(linear);
        matmul(pool, input, matrix, bias, out);
    };
    for (expert, own) in experts.iter().enumerate() {
        let slots = sorted.of_expert(expert);
        if slots.is_empty() {
            continue;
        }
        let read = &mut gathered[..slots.len() * width];
        for (read, &slot) in read.chunks_exact_mut(width).zip(slots) {
            let by = if *on_input { shares[slot] } else { 1.0 };
            read.iter_mut().zip(&input[slot / top_k * width..]).for_each(|(y, x)| *y = x * by);
        }
        let count = slots.len() * rows(&own.up);
        let neurons = &mut neurons[..count];
        product(own.gate.as_ref().unwrap_or(&own.up), read, neurons);
        match &own.gate {
            Some(_) => {
                let linear = &mut linear[..count];
                product(&own.up, read, linear);
                activation::activate_gated(*activation, neurons, linear);
            }
            None => activate(*activation, neurons),
        }
        // The gathered inputs are no longer needed: reuse their buffer for the outputs.
        product(&own.down, neurons, read);
        for (&slot, result) in slots.iter().zip(read.chunks_exact(width)) {
            outputs[slot * width..][..width].copy_from_slice(result);
        }
    }
    [gathered, neurons, linear].into_iter().for_each(|buffer| frame.give_back(buffer));
    outputs
}

/// Multiplies each slot's input, written by `read`, with its expert's weight: `[slots, outputs]`.
fn routed_matmul(
    frame: &mut Frame,
    experts: &[WeightId],
    choices: EdgeId,
    inner: usize,
    read: &dyn Fn(&Frame, usize, &mut [f32]),
) -> Vec<f32> {
    let mut scratch = SCRATCH.take();
    scratch.slots.assign(frame.value(choices), experts.len());
    let width = experts.iter().map(|&expert| frame.weights.matrix(expert).rows()).max().unwrap_or(0);
    let count = frame.value(choices).len();
    let most = count / frame.program.edge(choices).width;
    let mut lines = frame.scratch(count * width);
    let (mut gathered, mut results) = (frame.scratch(most * inner), frame.scratch(most * width));
    for (expert, &weight) in experts.iter().enumerate() {
        let slots = scratch.slots.of_expert(expert);
        if slots.is_empty() {
            continue;
        }
        let (gathered, results) = (&mut gathered[..slots.len() * inner], &mut results[..slots.len() * width]);
        gathered.chunks_exact_mut(inner).zip(slots).for_each(|(line, &slot)| read(frame, slot, line));
        matmul(frame.pool, gathered, frame.weights.matrix(weight), None, results);
        for (&slot, result) in slots.iter().zip(results.chunks_exact(width)) {
            lines[slot * width..][..width].copy_from_slice(result);
        }
    }
    frame.give_back(gathered);
    frame.give_back(results);
    SCRATCH.set(scratch);
    lines
}

/// Queries from the chosen experts. An expert computes one head per KV head; the heads of one KV
/// head are adjacent.
pub(super) fn queries(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::RoutedMatMul { x, indices, experts, heads, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let (width, top_k) = (frame.program.edge(*x).width, frame.program.edge(*indices).width);
    let dim = frame.program.edge(*out).width / top_k / heads;
    let outputs = routed_matmul(frame, experts, *indices, width, &|frame, slot, line| {
        line.copy_from_slice(&frame.value(*x)[slot / top_k * width..][..width]);
    });
    for (slot, outputs) in outputs.chunks_exact(heads * dim).enumerate() {
        for (head, outputs) in outputs.chunks_exact(dim).enumerate() {
            let index = slot / top_k * top_k * heads + head * top_k + slot % top_k;
            value[index * dim..][..dim].copy_from_slice(outputs);
        }
    }
    frame.give_back(outputs);
    frame.put(*out, value, taps)
}

/// Output projection by the chosen experts, each for its own heads.
pub(super) fn project(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::RoutedProject { z, weights, indices, experts, bias, heads, out } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let (width, top_k) = (frame.program.edge(*out).width, frame.program.edge(*indices).width);
    let dim = frame.program.edge(*z).width / top_k / heads;
    let outputs = routed_matmul(frame, experts, *indices, heads * dim, &|frame, slot, line| {
        for (head, part) in line.chunks_exact_mut(dim).enumerate() {
            let index = slot / top_k * top_k * heads + head * top_k + slot % top_k;
            part.copy_from_slice(&frame.value(*z)[index * dim..][..dim]);
        }
    });
    value.fill(0.0);
    let shares = frame.value(*weights);
    for (slot, outputs) in outputs.chunks_exact(width).enumerate() {
        let sum = &mut value[slot / top_k * width..][..width];
        sum.iter_mut().zip(outputs).for_each(|(y, x)| *y += shares[slot] * x);
    }
    let bias = frame.weights.vector(*bias);
    value.chunks_exact_mut(width).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
    frame.give_back(outputs);
    frame.put(*out, value, taps)
}
