//! Ops that carry something from token to token: each row's tokens in the other order.
//!
//! A recorded pass takes whole rows, so each of them begins with nothing carried.

use super::tape::Tape;
use super::walk::Walk;
use super::weights::add_lines;
use crate::cpu::recurrence::{Reads, rates};
use crate::exec::Segment;
use crate::program::{OpKind, StateDecay};
use pellucid_kernels::activation::{Activation, activate, activate_backward, softplus_derivative};
use pellucid_kernels::memory::Shared;
use pellucid_kernels::recurrence::{Fade, RecurrenceShape, convolve, direction, softplus, step};
use pellucid_kernels::recurrence_back::{self as kernel, REMEMBERED, Token, TokenGradient, direction_back, step_back};
use std::ops::Range;

fn tokens(segment: &Segment, width: usize) -> Range<usize> {
    segment.token * width..(segment.token + segment.count) * width
}

pub(super) fn convolve_back(walk: &mut Walk, tape: &Tape, kind: &OpKind, mut gradient: Vec<f32>) {
    let OpKind::Convolve { x, kernel: weight, bias: shift, activation, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (kernel, bias) = (walk.weights.vector(*weight), shift.map(|b| walk.weights.vector(b)));
    let channels = walk.width(*x);
    if *activation != Activation::Identity {
        let mut before = walk.make(*x);
        for segment in &walk.pass.segments {
            let range = tokens(segment, channels);
            let mut past = vec![0.0; kernel.len() - channels];
            convolve(&tape.value(*x)[range.clone()], &mut past, kernel, bias, channels, &mut before[range]);
        }
        activate_backward(*activation, &before, &mut gradient);
        walk.give(before);
    }
    add_lines(walk, *shift, &gradient);
    let (segments, taps) = (&walk.pass.segments, kernel.len() / channels);
    if let Some(sum) = walk.weight(*weight) {
        for segment in segments {
            let range = tokens(segment, channels);
            let (x, dy) = (&tape.value(*x)[range.clone()], &gradient[range]);
            for (place, sum) in sum.iter_mut().enumerate() {
                let (channel, back) = (place / taps, taps - 1 - place % taps);
                let later = dy[channel..].iter().step_by(channels).skip(back);
                *sum += later.zip(x[channel..].iter().step_by(channels)).map(|(dy, x)| dy * x).sum::<f32>();
            }
        }
    }
    let mut dx = walk.make(*x);
    for segment in &walk.pass.segments {
        let range = tokens(segment, channels);
        kernel::convolve_back(&gradient[range.clone()], kernel, channels, &mut dx[range]);
    }
    walk.give(gradient);
    walk.add(*x, dx);
}

pub(super) fn shift_back(walk: &mut Walk, tape: &Tape, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Shift { x, mix: weight, .. } = kind else { unreachable!("dispatched on the kind") };
    let (mix, width, segments) = (walk.weights.vector(*weight), walk.width(*x), &walk.pass.segments);
    if let Some(sum) = walk.weight(*weight) {
        for segment in segments {
            let range = tokens(segment, width);
            let (x, dy, nothing) = (&tape.value(*x)[range.clone()], &gradient[range], vec![0.0; width]);
            let before = std::iter::once(&nothing[..]).chain(x.chunks_exact(width));
            for ((now, before), dy) in x.chunks_exact(width).zip(before).zip(dy.chunks_exact(width)) {
                let differences = now.iter().zip(before).map(|(now, before)| now - before);
                sum.iter_mut().zip(differences.zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
            }
        }
    }
    // A convolution over two tokens: the one before, and the present one.
    let kernel: Vec<f32> = mix.iter().flat_map(|mix| [1.0 - mix, *mix]).collect();
    let mut dx = walk.make(*x);
    for segment in &walk.pass.segments {
        let range = tokens(segment, width);
        kernel::convolve_back(&gradient[range.clone()], &kernel, width, &mut dx[range]);
    }
    walk.give(gradient);
    walk.add(*x, dx);
}

pub(super) fn lru_back(walk: &mut Walk, tape: &Tape, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Lru { x, input_gate, recurrent_gate, rate: weight, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (mut gates, mut decays) = (walk.copy(tape.value(*input_gate)), walk.copy(tape.value(*recurrent_gate)));
    activate(Activation::Sigmoid, &mut gates);
    activate(Activation::Sigmoid, &mut decays);
    let (width, input) = (walk.width(*x), tape.value(*x));
    let rate: Vec<f32> = walk.weights.vector(*weight).iter().map(|&x| -8.0 * softplus(x)).collect();
    let mut by_rate = vec![0.0; width];
    let (mut dx, mut by_gate, mut by_decay) = (walk.make(*x), walk.make(*x), walk.make(*x));
    for segment in &walk.pass.segments {
        for (channel, rate) in rate.iter().enumerate() {
            let at = |token: usize| (segment.token + token) * width + channel;
            let log = |token: usize| rate * decays[at(token)];
            // A row's first token enters whole.
            let share = |token: usize| if token == 0 { 1.0 } else { (1.0 - (2.0 * log(token)).exp()).sqrt() };
            let mut states = vec![0.0; segment.count + 1];
            for token in 0..segment.count {
                let gated = input[at(token)] * gates[at(token)];
                states[token + 1] = log(token).exp() * states[token] + share(token) * gated;
            }
            let mut state = 0.0;
            for token in (0..segment.count).rev() {
                let (i, fade, share) = (at(token), log(token).exp(), share(token));
                state += gradient[i];
                let by_gated = state * share;
                dx[i] = by_gated * gates[i];
                by_gate[i] = by_gated * input[i] * gates[i] * (1.0 - gates[i]);
                let mut by_log = state * states[token] * fade;
                if token > 0 && share > 0.0 {
                    by_log -= state * input[i] * gates[i] * fade * fade / share;
                }
                by_decay[i] = by_log * rate * decays[i] * (1.0 - decays[i]);
                by_rate[channel] += by_log * decays[i];
                state *= fade;
            }
        }
    }
    by_rate.iter_mut().zip(walk.weights.vector(*weight)).for_each(|(by, &x)| *by *= -8.0 * softplus_derivative(x));
    add_lines(walk, Some(*weight), &by_rate);
    [gates, decays, gradient].into_iter().for_each(|buffer| walk.give(buffer));
    walk.add(*x, dx);
    walk.add(*input_gate, by_gate);
    walk.add(*recurrent_gate, by_decay);
}

pub(super) fn wkv_back(walk: &mut Walk, tape: &Tape, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Wkv { k, v, decay: decay_weight, first: first_weight, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, first) = (walk.width(*k), walk.weights.vector(*first_weight));
    let decay: Vec<f32> = walk.weights.vector(*decay_weight).iter().map(|x| -x.exp()).collect();
    let (mut by_k, mut by_v) = (walk.make(*k), walk.make(*v));
    let (to_k, to_v) = (Shared::new(&mut by_k), Shared::new(&mut by_v));
    for segment in &walk.pass.segments {
        walk.pool.run(width, &|channel| {
            let at = |token: usize| (segment.token + token) * width + channel;
            let column = |from: &[f32]| (0..segment.count).map(|token| from[at(token)]).collect::<Vec<f32>>();
            let (mut dk, mut dv) = (vec![0.0; segment.count], vec![0.0; segment.count]);
            let (keys, values) = (column(tape.value(*k)), column(tape.value(*v)));
            kernel::wkv_back(&keys, &values, decay[channel], first[channel], &column(&gradient), &mut dk, &mut dv);
            for token in 0..segment.count {
                // SAFETY: each task has its own channel.
                unsafe {
                    to_k.part(at(token), 1)[0] = dk[token];
                    to_v.part(at(token), 1)[0] = dv[token];
                }
            }
        });
    }
    if [*decay_weight, *first_weight].iter().any(|&weight| walk.weight(weight).is_some()) {
        let (keys, values) = (tape.value(*k), tape.value(*v));
        let (mut by_decay, mut by_first) = (vec![0.0; width], vec![0.0; width]);
        for segment in &walk.pass.segments {
            for channel in 0..width {
                let at = |token: usize| (segment.token + token) * width + channel;
                let tokens = (0..segment.count).map(|token| (keys[at(token)], values[at(token)], gradient[at(token)]));
                let (slope, own) = wkv_weights_back(tokens, decay[channel], first[channel]);
                // A decay is minus e to the power of its weight.
                by_decay[channel] += slope * decay[channel];
                by_first[channel] += own;
            }
        }
        add_lines(walk, Some(*decay_weight), &by_decay);
        add_lines(walk, Some(*first_weight), &by_first);
    }
    walk.give(gradient);
    walk.add(*k, by_k);
    walk.add(*v, by_v);
}

/// What a channel's tokens (key, value and gradient of the average) say about its decay, and about its weight of a token's own value.
///
/// The sums over earlier tokens are carried as the average carries them, each with its derivative by the decay beside it.
fn wkv_weights_back(tokens: impl Iterator<Item = (f32, f32, f32)>, decay: f32, first: f32) -> (f32, f32) {
    let (mut above, mut below, mut top) = (0.0f32, 0.0f32, -1e38f32);
    let (mut above_slope, mut below_slope) = (0.0f32, 0.0f32);
    let (mut by_decay, mut by_first) = (0.0, 0.0);
    for (key, value, dy) in tokens {
        let most = top.max(key + first);
        let (old, new) = ((top - most).exp(), (key + first - most).exp());
        let total = old * below + new;
        let out = (old * above + new * value) / total;
        by_first += dy / total * new * (value - out);
        by_decay += dy / total * old * (above_slope - out * below_slope);
        let most = (top + decay).max(key);
        let (old, new) = ((top + decay - most).exp(), (key - most).exp());
        (above_slope, below_slope) = (old * (above_slope + above), old * (below_slope + below));
        (above, below, top) = (old * above + new * value, old * below + new, most);
    }
    (by_decay, by_first)
}

/// Where the gradients of a recurrence's inputs go, and of its own weights.
#[derive(Clone, Copy)]
struct To {
    v: Shared<f32>,
    step: Shared<f32>,
    strength: Shared<f32>,
    rate: Shared<f32>,
    skip: Shared<f32>,
}

pub(super) fn recur_back(walk: &mut Walk, tape: &Tape, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Recur { q, k, v, decay, strength, skip, shape, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let rates: Vec<f32> = rates(kind, walk.weights).collect();
    let reads = Reads::of(kind, shape, walk.weights, &rates, &|edge| tape.value(edge));
    let (step, rate) = match decay {
        StateDecay::Learned { step, rate } => (Some(*step), Some(*rate)),
        StateDecay::Fixed(_) => (None, None),
    };
    let (mut by_rate, mut by_skip) = (vec![0.0; reads.rate.len()], vec![0.0; shape.heads]);
    let (mut by_q, mut by_k, mut by_v) = (walk.zeros(*q), walk.zeros(*k), walk.make(*v));
    let mut by_step = step.map_or(Vec::new(), |edge| walk.zeros(edge));
    let mut by_strength = strength.map_or(Vec::new(), |edge| walk.make(edge));
    let to = To {
        v: Shared::new(&mut by_v),
        step: Shared::new(&mut by_step),
        strength: Shared::new(&mut by_strength),
        rate: Shared::new(&mut by_rate),
        skip: Shared::new(&mut by_skip),
    };
    // Heads that share their keys and queries add up what they say about them: some at a time, each lot by itself, the lots in order.
    const HEADS: usize = 64;
    let served = shape.heads / shape.key_heads;
    let lots = served.div_ceil(HEADS);
    for segment in &walk.pass.segments {
        let each = segment.count * shape.key_dim;
        let mut sums = vec![0.0; shape.key_heads * lots * 2 * each];
        let shared = Shared::new(&mut sums);
        walk.pool.run(shape.key_heads * lots, &|task| {
            let (key_head, lot) = (task / lots, task % lots);
            // SAFETY: each task has its own sums, and its own heads of everything else.
            let (by_q, by_k) = unsafe { shared.part(task * 2 * each, 2 * each) }.split_at_mut(each);
            for head in key_head * served + lot * HEADS..key_head * served + ((lot + 1) * HEADS).min(served) {
                // SAFETY: as above.
                unsafe { head_back(&reads, head, segment, &gradient, by_q, by_k, to) };
            }
        });
        for (task, sums) in sums.chunks_exact(2 * each).enumerate() {
            let (own_q, own_k) = sums.split_at(each);
            for (token, (own_q, own_k)) in
                own_q.chunks_exact(shape.key_dim).zip(own_k.chunks_exact(shape.key_dim)).enumerate()
            {
                let at = ((segment.token + token) * shape.key_heads + task / lots) * shape.key_dim;
                by_q[at..].iter_mut().zip(own_q).for_each(|(y, x)| *y += x);
                by_k[at..].iter_mut().zip(own_k).for_each(|(y, x)| *y += x);
            }
        }
    }
    add_lines(walk, rate, &by_rate);
    add_lines(walk, *skip, &by_skip);
    walk.give(gradient);
    walk.add(*q, by_q);
    walk.add(*k, by_k);
    walk.add(*v, by_v);
    if let Some(edge) = step {
        walk.add(edge, by_step);
    }
    if let Some(edge) = *strength {
        walk.add(edge, by_strength);
    }
}

/// Takes one head back through a row's tokens.
///
/// # Safety
/// No other call works on this head of this row at the same time.
unsafe fn head_back(
    reads: &Reads,
    head: usize,
    segment: &Segment,
    gradient: &[f32],
    by_q: &mut [f32],
    by_k: &mut [f32],
    to: To,
) {
    let RecurrenceShape { heads, key_dim, value_dim, unit, query_scale, step_writes, .. } = *reads.shape;
    let each = key_dim * value_dim;
    let mut room = Room::new(key_dim, value_dim);
    // States every few tokens; those between are computed once more from them.
    let mut remembered = Vec::new();
    let (mut state, mut out) = (vec![0.0; each], vec![0.0; value_dim]);
    for token in 0..segment.count {
        if token % REMEMBERED == 0 {
            remembered.push(state.clone());
        }
        let token = room.read(reads, head, segment.token + token);
        step(&mut state, token.query, token.key, token.value, token.fade, token.strength, &mut out);
    }
    let mut upstream_state = vec![0.0; each];
    let (mut dq, mut dk, mut dv) = (vec![0.0; key_dim], vec![0.0; key_dim], vec![0.0; value_dim]);
    let mut dfade = vec![0.0; key_dim];
    let mut states = vec![0.0; (REMEMBERED + 1) * each];
    for (chunk, start) in remembered.iter().enumerate().rev() {
        let tokens = chunk * REMEMBERED..((chunk + 1) * REMEMBERED).min(segment.count);
        states[..each].copy_from_slice(start);
        for (place, token) in tokens.clone().enumerate() {
            let (before, after) = states.split_at_mut((place + 1) * each);
            after[..each].copy_from_slice(&before[place * each..]);
            let token = room.read(reads, head, segment.token + token);
            step(&mut after[..each], token.query, token.key, token.value, token.fade, token.strength, &mut out);
        }
        for (place, token) in tokens.enumerate().rev() {
            let at = segment.token + token;
            let (before, after) = (&states[place * each..][..each], &states[(place + 1) * each..][..each]);
            let upstream = &gradient[(at * heads + head) * value_dim..][..value_dim];
            let read = room.read(reads, head, at);
            let mut own =
                TokenGradient { query: &mut dq, key: &mut dk, value: &mut dv, fade: &mut dfade, strength: 0.0 };
            step_back(read, before, after, upstream, &mut upstream_state, &mut own);
            let by_strength = own.strength;

            let raw = (at * reads.shape.key_heads + head / (heads / reads.shape.key_heads)) * key_dim;
            let place = token * key_dim..(token + 1) * key_dim;
            direction_back(&reads.q[raw..raw + key_dim], unit, query_scale, &dq, &mut by_q[place.clone()]);
            direction_back(&reads.k[raw..raw + key_dim], unit, 1.0, &dk, &mut by_k[place]);
            // SAFETY: the caller gives this head to nobody else.
            unsafe {
                if reads.fixed.is_none() {
                    for (i, by_fade) in dfade.iter().enumerate() {
                        // A fade is `exp(rate · step)`, and a rate minus e to the power of its weight.
                        let (place, step) = reads.rate_and_step(head, at, i);
                        let (rate, time) = (reads.rate[place], reads.step[step]);
                        let by = by_fade * rate * (rate * time).exp();
                        to.step.part(step, 1)[0] += by;
                        to.rate.part(place, 1)[0] += by * time;
                    }
                }
                let value = &reads.v[(at * heads + head) * value_dim..][..value_dim];
                let by_value = to.v.part((at * heads + head) * value_dim, value_dim);
                let written = reads.written(head, at);
                if step_writes {
                    // The value was written times its time step.
                    let steps = reads.steps();
                    to.step.part(at * steps + head, 1)[0] += value.iter().zip(&dv).map(|(v, g)| v * g).sum::<f32>();
                }
                let skip = reads.skip.map_or(0.0, |skip| skip[head]);
                to.skip.part(head, 1)[0] += value.iter().zip(upstream).map(|(v, g)| v * g).sum::<f32>();
                for (c, y) in by_value.iter_mut().enumerate() {
                    *y = dv[c] * written + skip * upstream[c];
                }
                if reads.strength.is_some() {
                    to.strength.part(at * heads + head, 1)[0] = by_strength;
                }
            }
        }
    }
}

/// What a token has read, made as the recurrence takes it.
struct Room {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    fades: Vec<f32>,
}

impl Room {
    fn new(key_dim: usize, value_dim: usize) -> Room {
        Room {
            query: vec![0.0; key_dim],
            key: vec![0.0; key_dim],
            value: vec![0.0; value_dim],
            fades: vec![0.0; key_dim],
        }
    }

    fn read(&mut self, reads: &Reads, head: usize, token: usize) -> Token<'_> {
        let RecurrenceShape { heads, key_heads, key_dim, value_dim, unit, query_scale, .. } = *reads.shape;
        let at = (token * key_heads + head / (heads / key_heads)) * key_dim;
        direction(&reads.q[at..at + key_dim], unit, query_scale, &mut self.query);
        direction(&reads.k[at..at + key_dim], unit, 1.0, &mut self.key);
        let (value, by) = (&reads.v[(token * heads + head) * value_dim..][..value_dim], reads.written(head, token));
        self.value.iter_mut().zip(value).for_each(|(w, v)| *w = v * by);
        let fade: Fade<'_> = reads.fade(head, token, &mut self.fades);
        let strength = reads.strength.map(|s| s[token * heads + head]);
        Token { query: &self.query, key: &self.key, value: &self.value, fade, strength }
    }
}
