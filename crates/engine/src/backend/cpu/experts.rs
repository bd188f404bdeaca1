//! Mixtures of experts: the choice, then the chosen experts on the tokens that chose them.

use crate::architecture::{ExpertGroups, ExpertWeights, Routing, Scores};
use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::program::{EdgeId, Linear, OpKind, WeightId};
use pellucid_kernels::activation::{Activation, activate};
use pellucid_kernels::softmax::softmax;
use pellucid_kernels::{activation, matmul};
use std::cell::RefCell;

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
        DESK.with_borrow_mut(|desk| match routing.scores {
            Scores::SparseMixer { tolerance } => sparse_mixer(logits, tolerance, shares, choices, desk),
            _ => choose(logits, routing, correction, shares, choices, desk),
        });
    }
    frame.put(*weights, shares, taps)?;
    frame.put(*indices, choices, taps)
}

/// What a choice is worked out on; kept from token to token.
#[derive(Default)]
pub(crate) struct Desk {
    scores: Vec<f32>,
    judged: Vec<f32>,
    worths: Vec<f32>,
    slots: Slots,
}

thread_local! {
    static DESK: RefCell<Desk> = RefCell::default();
}

/// What a token's scores are before the choice.
pub(crate) fn scores(logits: &[f32], routing: &Routing, scores: &mut Vec<f32>) {
    scores.clear();
    scores.extend_from_slice(logits);
    match routing.scores {
        Scores::Softmax => softmax(scores, None),
        Scores::Sigmoid => activate(Activation::Sigmoid, scores),
        Scores::Raw | Scores::SparseMixer { .. } => {}
    }
}

/// One token's choice.
pub(crate) fn choose(
    logits: &[f32],
    routing: &Routing,
    correction: Option<&[f32]>,
    shares: &mut [f32],
    choices: &mut [f32],
    desk: &mut Desk,
) {
    scores(logits, routing, &mut desk.scores);
    desk.judged.clear();
    // What is no number comes first, as torch has it, and is told from what was taken, whatever its sign.
    desk.judged.extend(desk.scores.iter().map(|score| if score.is_nan() { f32::NAN } else { *score }));
    if let Some(correction) = correction {
        desk.judged.iter_mut().zip(correction).for_each(|(score, by)| *score += by);
    }
    if let Some(groups) = routing.groups {
        keep_groups(groups, &mut desk.judged, &mut desk.worths);
    }
    for (share, choice) in shares.iter_mut().zip(choices.iter_mut()) {
        let expert = take_best(&mut desk.judged);
        (*share, *choice) = (desk.scores[expert], expert as f32);
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

/// The index of the largest number, the earlier among equals.
fn best(scores: &[f32]) -> usize {
    // `max_by` takes the last among equals.
    (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap_or_default()
}

/// The best that is left, which is then out of the question: below everything, minus infinity included.
fn take_best(scores: &mut [f32]) -> usize {
    let best = best(scores);
    scores[best] = -f32::NAN;
    best
}

/// Puts the experts of all but the best groups out of the question.
fn keep_groups(groups: ExpertGroups, scores: &mut [f32], worths: &mut Vec<f32>) {
    let size = scores.len() / groups.count;
    let worth = |group: &[f32]| {
        let first = best(group);
        let second = (0..group.len()).rev().filter(|&i| i != first).max_by(|&a, &b| group[a].total_cmp(&group[b]));
        group[first] + second.filter(|_| groups.by_best_two).map_or(0.0, |second| group[second])
    };
    worths.clear();
    worths.extend(scores.chunks_exact(size).map(worth));
    (0..groups.kept).for_each(|_| _ = take_best(worths));
    // What was taken is kept.
    for (group, worth) in scores.chunks_exact_mut(size).zip(worths) {
        if !worth.is_nan() {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Each choice is the best expert left, weighted by its softmax among those that come close to it.
fn sparse_mixer(logits: &[f32], tolerance: f32, shares: &mut [f32], choices: &mut [f32], desk: &mut Desk) {
    let (left, close) = (&mut desk.judged, &mut desk.scores);
    left.clear();
    left.extend_from_slice(logits);
    for (share, choice) in shares.iter_mut().zip(choices) {
        let best = best_and_close(logits, tolerance, left, close);
        (*share, *choice) = (close[best], best as f32);
        left[best] = f32::NEG_INFINITY;
    }
}

/// The best expert left; `close` becomes the softmax over those that come close to it.
pub(crate) fn best_and_close(logits: &[f32], tolerance: f32, left: &[f32], close: &mut Vec<f32>) -> usize {
    let best = best(left);
    let top = left[best];
    let near = |i: usize| (top - logits[i]) / logits[i].abs().max(top) <= 2.0 * tolerance;
    close.clear();
    close.extend((0..left.len()).map(|i| if near(i) { left[i] } else { f32::NEG_INFINITY }));
    softmax(close, None);
    best
}

/// The slots (token by token, choice by choice) that chose each expert.
#[derive(Default)]
pub(crate) struct Slots {
    /// Expert after expert.
    order: Vec<usize>,
    /// Where each expert's end.
    ends: Vec<usize>,
}

impl Slots {
    pub fn of(choices: &[f32], experts: usize) -> Slots {
        let mut slots = Slots::default();
        slots.sort(choices, experts);
        slots
    }

    /// Makes this the slots of other choices.
    fn sort(&mut self, choices: &[f32], experts: usize) {
        self.ends.clear();
        self.ends.resize(experts, 0);
        choices.iter().for_each(|&choice| self.ends[choice as usize] += 1);
        let mut end = 0;
        self.ends.iter_mut().for_each(|count| {
            end += *count;
            *count = end - *count;
        });
        // Each expert's begin moves to its end while its slots are listed.
        self.order.resize(choices.len(), 0);
        for (slot, &choice) in choices.iter().enumerate() {
            let place = &mut self.ends[choice as usize];
            self.order[*place] = slot;
            *place += 1;
        }
    }

    /// The slots that chose an expert, in order.
    pub fn of_expert(&self, expert: usize) -> &[usize] {
        let from = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.order[from..self.ends[expert]]
    }
}

/// Each expert runs once on all tokens that chose it; a token adds up its experts in its own order of choice,
/// so its sum does not depend on its neighbours.
pub(super) fn run(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let mut desk = DESK.take();
    let value = mixed(index, frame, &mut desk.slots);
    DESK.set(desk);
    let OpKind::Experts { out, .. } = &frame.program.ops()[index].kind else { unreachable!("dispatched on the kind") };
    frame.put(*out, value, taps)
}

fn mixed(index: usize, frame: &mut Frame, sorted: &mut Slots) -> Vec<f32> {
    let OpKind::Experts { x, weights, indices, experts, activation, on_input, out } = &frame.program.ops()[index].kind
    else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    value.fill(0.0);
    let width = frame.program.edge(*out).width;
    let chosen = frame.program.edge(*weights).width;
    sorted.sort(frame.value(*indices), experts.len());
    let (weights_of, pool) = (frame.weights, frame.pool);
    let rows = |linear: &Linear| weights_of.matrix(linear.weight).rows();
    let inner = experts.iter().map(|expert| rows(&expert.up)).max().unwrap_or(0);
    // A token chooses an expert at most once, unless it had only infinities to choose among.
    let slots = frame.value(*indices).len();
    let most = (0..experts.len()).map(|expert| sorted.of_expert(expert).len()).fold(slots / chosen, usize::max);
    // The output of each choice of each token, and room for one expert at work.
    let mut outputs = frame.room(slots * width);
    let mut gathered = frame.room(most * width);
    let (mut neurons, mut linear) = (frame.room(most * inner), frame.room(most * inner));
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
            read.iter_mut().zip(&input[slot / chosen * width..]).for_each(|(y, x)| *y = x * by);
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
        // What was gathered has been read: the results take its place.
        product(&own.down, neurons, read);
        for (&slot, result) in slots.iter().zip(read.chunks_exact(width)) {
            outputs[slot * width..][..width].copy_from_slice(result);
        }
    }
    for (slot, output) in outputs.chunks_exact(width).enumerate() {
        let share = if *on_input { 1.0 } else { shares[slot] };
        let sum = &mut value[slot / chosen * width..][..width];
        sum.iter_mut().zip(output).for_each(|(y, x)| *y += share * x);
    }
    [outputs, gathered, neurons, linear].into_iter().for_each(|room| frame.give_back(room));
    value
}

/// Products of attention experts with what each slot reads: one line a slot.
fn routed(
    frame: &mut Frame,
    experts: &[WeightId],
    choices: EdgeId,
    inner: usize,
    read: &dyn Fn(&Frame, usize, &mut [f32]),
) -> Vec<f32> {
    let mut desk = DESK.take();
    desk.slots.sort(frame.value(choices), experts.len());
    let width = experts.iter().map(|&expert| frame.weights.matrix(expert).rows()).max().unwrap_or(0);
    let count = frame.value(choices).len();
    let most = count / frame.program.edge(choices).width;
    let mut lines = frame.room(count * width);
    let (mut gathered, mut results) = (frame.room(most * inner), frame.room(most * width));
    for (expert, &weight) in experts.iter().enumerate() {
        let slots = desk.slots.of_expert(expert);
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
    DESK.set(desk);
    lines
}

/// Queries by the chosen experts. An expert makes one head for each key head; the heads of a key head stand together.
pub(super) fn queries(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let OpKind::RoutedMatMul { x, indices, experts, heads, out } = &frame.program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.make(*out);
    let (width, chosen) = (frame.program.edge(*x).width, frame.program.edge(*indices).width);
    let dim = frame.program.edge(*out).width / chosen / heads;
    let made = routed(frame, experts, *indices, width, &|frame, slot, line| {
        line.copy_from_slice(&frame.value(*x)[slot / chosen * width..][..width]);
    });
    for (slot, made) in made.chunks_exact(heads * dim).enumerate() {
        for (head, made) in made.chunks_exact(dim).enumerate() {
            let place = slot / chosen * chosen * heads + head * chosen + slot % chosen;
            value[place * dim..][..dim].copy_from_slice(made);
        }
    }
    frame.give_back(made);
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
    let made = routed(frame, experts, *indices, heads * dim, &|frame, slot, line| {
        for (head, part) in line.chunks_exact_mut(dim).enumerate() {
            let place = slot / chosen * chosen * heads + head * chosen + slot % chosen;
            part.copy_from_slice(&frame.value(*z)[place * dim..][..dim]);
        }
    });
    value.fill(0.0);
    let shares = frame.value(*weights);
    for (slot, made) in made.chunks_exact(width).enumerate() {
        let sum = &mut value[slot / chosen * width..][..width];
        sum.iter_mut().zip(made).for_each(|(y, x)| *y += shares[slot] * x);
    }
    let bias = frame.weights.vector(*bias);
    value.chunks_exact_mut(width).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
    frame.give_back(made);
    frame.put(*out, value, taps)
}
