//! Backward passes of recurrent ops: each row's tokens in reverse order.
//!
//! A recorded pass runs whole rows, so each row starts from the initial state.

use super::backward::BackwardPass;
use super::weights::add_lines;
use crate::backend::RetainedValues;
use crate::backend::cpu::recurrence::{RecurrenceInputs, rates};
use crate::job::Segment;
use crate::program::{OpKind, StateDecay};
use pellucid_kernels::activation::{Activation, activate, activate_backward, softplus_derivative};
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::recurrence::{DecayFactor, RecurrenceShape, convolve, normalize_and_scale, softplus, step};
use pellucid_kernels::recurrence_backward::{
    self as kernel, CHECKPOINT_INTERVAL, StepGradients, StepInputs, normalize_and_scale_backward, step_backward,
};
use std::ops::Range;

fn tokens(segment: &Segment, width: usize) -> Range<usize> {
    segment.token * width..(segment.token + segment.count) * width
}

pub(super) fn convolve_backward(
    ctx: &mut BackwardPass,
    retained: &RetainedValues,
    kind: &OpKind,
    mut gradient: Vec<f32>,
) {
    let OpKind::Convolve { x, kernel: weight, bias: shift, activation, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (kernel, bias) = (ctx.weights.vector(*weight), shift.map(|b| ctx.weights.vector(b)));
    let channels = ctx.width(*x);
    if *activation != Activation::Identity {
        let mut before = ctx.alloc(*x);
        for segment in &ctx.pass.segments {
            let range = tokens(segment, channels);
            let mut past = vec![0.0; kernel.len() - channels];
            convolve(&retained.value(*x)[range.clone()], &mut past, kernel, bias, channels, &mut before[range]);
        }
        activate_backward(*activation, &before, &mut gradient);
        ctx.release(before);
    }
    add_lines(ctx, *shift, &gradient);
    let (segments, taps) = (&ctx.pass.segments, kernel.len() / channels);
    if let Some(sum) = ctx.weight(*weight) {
        for segment in segments {
            let range = tokens(segment, channels);
            let (x, dy) = (&retained.value(*x)[range.clone()], &gradient[range]);
            for (index, sum) in sum.iter_mut().enumerate() {
                let (channel, back) = (index / taps, taps - 1 - index % taps);
                let later = dy[channel..].iter().step_by(channels).skip(back);
                *sum += later.zip(x[channel..].iter().step_by(channels)).map(|(dy, x)| dy * x).sum::<f32>();
            }
        }
    }
    let mut dx = ctx.alloc(*x);
    for segment in &ctx.pass.segments {
        let range = tokens(segment, channels);
        kernel::convolve_backward(&gradient[range.clone()], kernel, channels, &mut dx[range]);
    }
    ctx.release(gradient);
    ctx.add_gradient(*x, dx);
}

pub(super) fn shift_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Shift { x, mix: weight, .. } = kind else { unreachable!("dispatched on the kind") };
    let (mix, width, segments) = (ctx.weights.vector(*weight), ctx.width(*x), &ctx.pass.segments);
    if let Some(sum) = ctx.weight(*weight) {
        for segment in segments {
            let range = tokens(segment, width);
            let (x, dy, nothing) = (&retained.value(*x)[range.clone()], &gradient[range], vec![0.0; width]);
            let before = std::iter::once(&nothing[..]).chain(x.chunks_exact(width));
            for ((now, before), dy) in x.chunks_exact(width).zip(before).zip(dy.chunks_exact(width)) {
                let differences = now.iter().zip(before).map(|(now, before)| now - before);
                sum.iter_mut().zip(differences.zip(dy)).for_each(|(sum, (x, dy))| *sum += x * dy);
            }
        }
    }
    // A token shift is a causal convolution with kernel size 2.
    let kernel: Vec<f32> = mix.iter().flat_map(|mix| [1.0 - mix, *mix]).collect();
    let mut dx = ctx.alloc(*x);
    for segment in &ctx.pass.segments {
        let range = tokens(segment, width);
        kernel::convolve_backward(&gradient[range.clone()], &kernel, width, &mut dx[range]);
    }
    ctx.release(gradient);
    ctx.add_gradient(*x, dx);
}

pub(super) fn lru_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Lru { x, input_gate, recurrent_gate, rate: weight, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (mut gates, mut decays) = (ctx.copy(retained.value(*input_gate)), ctx.copy(retained.value(*recurrent_gate)));
    activate(Activation::Sigmoid, &mut gates);
    activate(Activation::Sigmoid, &mut decays);
    let (width, input) = (ctx.width(*x), retained.value(*x));
    let rate: Vec<f32> = ctx.weights.vector(*weight).iter().map(|&x| -8.0 * softplus(x)).collect();
    let mut d_rate = vec![0.0; width];
    let (mut dx, mut d_gate, mut d_decay) = (ctx.alloc(*x), ctx.alloc(*x), ctx.alloc(*x));
    for segment in &ctx.pass.segments {
        for (channel, rate) in rate.iter().enumerate() {
            let at = |token: usize| (segment.token + token) * width + channel;
            let log = |token: usize| rate * decays[at(token)];
            // The first token of a row is not scaled down.
            let share = |token: usize| if token == 0 { 1.0 } else { (1.0 - (2.0 * log(token)).exp()).sqrt() };
            let mut states = vec![0.0; segment.count + 1];
            for token in 0..segment.count {
                let gated = input[at(token)] * gates[at(token)];
                states[token + 1] = log(token).exp() * states[token] + share(token) * gated;
            }
            let mut state = 0.0;
            for token in (0..segment.count).rev() {
                let (i, decay, share) = (at(token), log(token).exp(), share(token));
                state += gradient[i];
                let d_gated = state * share;
                dx[i] = d_gated * gates[i];
                d_gate[i] = d_gated * input[i] * gates[i] * (1.0 - gates[i]);
                let mut d_log = state * states[token] * decay;
                if token > 0 && share > 0.0 {
                    d_log -= state * input[i] * gates[i] * decay * decay / share;
                }
                d_decay[i] = d_log * rate * decays[i] * (1.0 - decays[i]);
                d_rate[channel] += d_log * decays[i];
                state *= decay;
            }
        }
    }
    d_rate.iter_mut().zip(ctx.weights.vector(*weight)).for_each(|(by, &x)| *by *= -8.0 * softplus_derivative(x));
    add_lines(ctx, Some(*weight), &d_rate);
    [gates, decays, gradient].into_iter().for_each(|buffer| ctx.release(buffer));
    ctx.add_gradient(*x, dx);
    ctx.add_gradient(*input_gate, d_gate);
    ctx.add_gradient(*recurrent_gate, d_decay);
}

pub(super) fn wkv_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Wkv { k, v, decay: decay_weight, first: first_weight, .. } = kind else {
        unreachable!("dispatched on the kind")
    };
    let (width, first) = (ctx.width(*k), ctx.weights.vector(*first_weight));
    let decay: Vec<f32> = ctx.weights.vector(*decay_weight).iter().map(|x| -x.exp()).collect();
    let (mut d_k, mut d_v) = (ctx.alloc(*k), ctx.alloc(*v));
    let (to_k, to_v) = (DisjointMut::new(&mut d_k), DisjointMut::new(&mut d_v));
    for segment in &ctx.pass.segments {
        ctx.pool.run(width, &|channel| {
            let at = |token: usize| (segment.token + token) * width + channel;
            let column = |from: &[f32]| (0..segment.count).map(|token| from[at(token)]).collect::<Vec<f32>>();
            let (mut dk, mut dv) = (vec![0.0; segment.count], vec![0.0; segment.count]);
            let (keys, values) = (column(retained.value(*k)), column(retained.value(*v)));
            kernel::wkv_backward(&keys, &values, decay[channel], first[channel], &column(&gradient), &mut dk, &mut dv);
            for token in 0..segment.count {
                // SAFETY: each task has its own channel.
                unsafe {
                    to_k.part(at(token), 1)[0] = dk[token];
                    to_v.part(at(token), 1)[0] = dv[token];
                }
            }
        });
    }
    if [*decay_weight, *first_weight].iter().any(|&weight| ctx.weight(weight).is_some()) {
        let (keys, values) = (retained.value(*k), retained.value(*v));
        let (mut d_decay, mut d_first) = (vec![0.0; width], vec![0.0; width]);
        for segment in &ctx.pass.segments {
            for channel in 0..width {
                let at = |token: usize| (segment.token + token) * width + channel;
                let tokens = (0..segment.count).map(|token| (keys[at(token)], values[at(token)], gradient[at(token)]));
                let (own_decay, own_first) = wkv_weights_backward(tokens, decay[channel], first[channel]);
                // decay = -exp(weight), so d decay / d weight = decay.
                d_decay[channel] += own_decay * decay[channel];
                d_first[channel] += own_first;
            }
        }
        add_lines(ctx, Some(*decay_weight), &d_decay);
        add_lines(ctx, Some(*first_weight), &d_first);
    }
    ctx.release(gradient);
    ctx.add_gradient(*k, d_k);
    ctx.add_gradient(*v, d_v);
}

/// Gradients of a WKV channel's decay and `first` weight; `tokens` yields `(key, value, output
/// gradient)`.
///
/// Repeats the forward recurrence of numerator and denominator, carrying their derivatives by the
/// decay along.
fn wkv_weights_backward(tokens: impl Iterator<Item = (f32, f32, f32)>, decay: f32, first: f32) -> (f32, f32) {
    let (mut numerator, mut denominator, mut max_exponent) = (0.0f32, 0.0f32, -1e38f32);
    let (mut d_numerator, mut d_denominator) = (0.0f32, 0.0f32);
    let (mut d_decay, mut d_first) = (0.0, 0.0);
    for (key, value, dy) in tokens {
        let max = max_exponent.max(key + first);
        let (old, new) = ((max_exponent - max).exp(), (key + first - max).exp());
        let total = old * denominator + new;
        let out = (old * numerator + new * value) / total;
        d_first += dy / total * new * (value - out);
        d_decay += dy / total * old * (d_numerator - out * d_denominator);
        let max = (max_exponent + decay).max(key);
        let (old, new) = ((max_exponent + decay - max).exp(), (key - max).exp());
        (d_numerator, d_denominator) = (old * (d_numerator + numerator), old * (d_denominator + denominator));
        (numerator, denominator, max_exponent) = (old * numerator + new * value, old * denominator + new, max);
    }
    (d_decay, d_first)
}

/// Output buffers for the gradients of a recurrence's inputs and weights.
#[derive(Clone, Copy)]
struct InputGradients {
    v: DisjointMut<f32>,
    step: DisjointMut<f32>,
    beta: DisjointMut<f32>,
    rate: DisjointMut<f32>,
    skip: DisjointMut<f32>,
}

pub(super) fn recur_backward(ctx: &mut BackwardPass, retained: &RetainedValues, kind: &OpKind, gradient: Vec<f32>) {
    let OpKind::Recur { q, k, v, decay, beta, skip, shape, .. } = kind else { unreachable!("dispatched on the kind") };
    let rates: Vec<f32> = rates(kind, ctx.weights).collect();
    let inputs = RecurrenceInputs::new(kind, shape, ctx.weights, &rates, &|edge| retained.value(edge));
    let (step, rate) = match decay {
        StateDecay::Learned { step, rate } => (Some(*step), Some(*rate)),
        StateDecay::Fixed(_) => (None, None),
    };
    let (mut d_rate, mut d_skip) = (vec![0.0; inputs.rate.len()], vec![0.0; shape.heads]);
    let (mut d_q, mut d_k, mut d_v) = (ctx.zeros(*q), ctx.zeros(*k), ctx.alloc(*v));
    let mut d_step = step.map_or(Vec::new(), |edge| ctx.zeros(edge));
    let mut d_beta = beta.map_or(Vec::new(), |edge| ctx.alloc(edge));
    let to = InputGradients {
        v: DisjointMut::new(&mut d_v),
        step: DisjointMut::new(&mut d_step),
        beta: DisjointMut::new(&mut d_beta),
        rate: DisjointMut::new(&mut d_rate),
        skip: DisjointMut::new(&mut d_skip),
    };
    // Heads that share a key head sum their gradients of q and k. Each batch of heads sums into its
    // own buffer, and the buffers are added in order, so the result does not depend on threads.
    const HEADS: usize = 64;
    let served = shape.heads / shape.key_heads;
    let batches = served.div_ceil(HEADS);
    for segment in &ctx.pass.segments {
        let each = segment.count * shape.key_dim;
        let mut sums = vec![0.0; shape.key_heads * batches * 2 * each];
        let shared = DisjointMut::new(&mut sums);
        ctx.pool.run(shape.key_heads * batches, &|task| {
            let (key_head, batch) = (task / batches, task % batches);
            // SAFETY: each task has its own sums, and its own heads of everything else.
            let (d_q, d_k) = unsafe { shared.part(task * 2 * each, 2 * each) }.split_at_mut(each);
            for head in key_head * served + batch * HEADS..key_head * served + ((batch + 1) * HEADS).min(served) {
                // SAFETY: as above.
                unsafe { head_backward(&inputs, head, segment, &gradient, d_q, d_k, to) };
            }
        });
        for (task, sums) in sums.chunks_exact(2 * each).enumerate() {
            let (own_q, own_k) = sums.split_at(each);
            for (token, (own_q, own_k)) in
                own_q.chunks_exact(shape.key_dim).zip(own_k.chunks_exact(shape.key_dim)).enumerate()
            {
                let at = ((segment.token + token) * shape.key_heads + task / batches) * shape.key_dim;
                d_q[at..].iter_mut().zip(own_q).for_each(|(y, x)| *y += x);
                d_k[at..].iter_mut().zip(own_k).for_each(|(y, x)| *y += x);
            }
        }
    }
    add_lines(ctx, rate, &d_rate);
    add_lines(ctx, *skip, &d_skip);
    ctx.release(gradient);
    ctx.add_gradient(*q, d_q);
    ctx.add_gradient(*k, d_k);
    ctx.add_gradient(*v, d_v);
    if let Some(edge) = step {
        ctx.add_gradient(edge, d_step);
    }
    if let Some(edge) = *beta {
        ctx.add_gradient(edge, d_beta);
    }
}

/// Runs one head backward over a row's tokens.
///
/// # Safety
/// No other call works on this head of this row at the same time.
unsafe fn head_backward(
    inputs: &RecurrenceInputs,
    head: usize,
    segment: &Segment,
    gradient: &[f32],
    d_q: &mut [f32],
    d_k: &mut [f32],
    to: InputGradients,
) {
    let RecurrenceShape { heads, key_dim, value_dim, qk_l2_norm, query_scale, scale_values_by_dt, .. } = *inputs.shape;
    let each = key_dim * value_dim;
    let mut token_inputs = TokenInputs::new(key_dim, value_dim);
    // Checkpoint the state every few tokens; recompute those between in the backward pass.
    let mut checkpoints = Vec::new();
    let (mut state, mut out) = (vec![0.0; each], vec![0.0; value_dim]);
    for token in 0..segment.count {
        if token % CHECKPOINT_INTERVAL == 0 {
            checkpoints.push(state.clone());
        }
        let token = token_inputs.read(inputs, head, segment.token + token);
        step(&mut state, token.query, token.key, token.value, token.decay, token.beta, &mut out);
    }
    let mut upstream_state = vec![0.0; each];
    let (mut dq, mut dk, mut dv) = (vec![0.0; key_dim], vec![0.0; key_dim], vec![0.0; value_dim]);
    let mut d_decays = vec![0.0; key_dim];
    let mut states = vec![0.0; (CHECKPOINT_INTERVAL + 1) * each];
    for (chunk, start) in checkpoints.iter().enumerate().rev() {
        let tokens = chunk * CHECKPOINT_INTERVAL..((chunk + 1) * CHECKPOINT_INTERVAL).min(segment.count);
        states[..each].copy_from_slice(start);
        for (offset, token) in tokens.clone().enumerate() {
            let (before, after) = states.split_at_mut((offset + 1) * each);
            after[..each].copy_from_slice(&before[offset * each..]);
            let token = token_inputs.read(inputs, head, segment.token + token);
            step(&mut after[..each], token.query, token.key, token.value, token.decay, token.beta, &mut out);
        }
        for (offset, token) in tokens.enumerate().rev() {
            let at = segment.token + token;
            let (before, after) = (&states[offset * each..][..each], &states[(offset + 1) * each..][..each]);
            let upstream = &gradient[(at * heads + head) * value_dim..][..value_dim];
            let read = token_inputs.read(inputs, head, at);
            let mut own =
                StepGradients { query: &mut dq, key: &mut dk, value: &mut dv, decay: &mut d_decays, beta: 0.0 };
            step_backward(read, before, after, upstream, &mut upstream_state, &mut own);
            let d_beta = own.beta;

            let raw = (at * inputs.shape.key_heads + head / (heads / inputs.shape.key_heads)) * key_dim;
            let range = token * key_dim..(token + 1) * key_dim;
            normalize_and_scale_backward(
                &inputs.q[raw..raw + key_dim],
                qk_l2_norm,
                query_scale,
                &dq,
                &mut d_q[range.clone()],
            );
            normalize_and_scale_backward(&inputs.k[raw..raw + key_dim], qk_l2_norm, 1.0, &dk, &mut d_k[range]);
            // SAFETY: the caller does not use this head anywhere else at the same time.
            unsafe {
                if inputs.fixed.is_none() {
                    for (i, d_decay) in d_decays.iter().enumerate() {
                        // decay = exp(rate · step) and rate = -exp(weight).
                        let (rate_index, step) = inputs.rate_and_step(head, at, i);
                        let (rate, time) = (inputs.rate[rate_index], inputs.step[step]);
                        let by = d_decay * rate * (rate * time).exp();
                        to.step.part(step, 1)[0] += by;
                        to.rate.part(rate_index, 1)[0] += by * time;
                    }
                }
                let value = &inputs.v[(at * heads + head) * value_dim..][..value_dim];
                let d_value = to.v.part((at * heads + head) * value_dim, value_dim);
                let written = inputs.write_scale(head, at);
                if scale_values_by_dt {
                    // The value entered the state multiplied by its time step.
                    let steps = inputs.steps();
                    to.step.part(at * steps + head, 1)[0] += value.iter().zip(&dv).map(|(v, g)| v * g).sum::<f32>();
                }
                let skip = inputs.skip.map_or(0.0, |skip| skip[head]);
                to.skip.part(head, 1)[0] += value.iter().zip(upstream).map(|(v, g)| v * g).sum::<f32>();
                for (c, y) in d_value.iter_mut().enumerate() {
                    *y = dv[c] * written + skip * upstream[c];
                }
                if inputs.beta.is_some() {
                    to.beta.part(at * heads + head, 1)[0] = d_beta;
                }
            }
        }
    }
}

/// Normalized and scaled inputs of one token, as the recurrence kernel takes them.
struct TokenInputs {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decays: Vec<f32>,
}

impl TokenInputs {
    fn new(key_dim: usize, value_dim: usize) -> TokenInputs {
        TokenInputs {
            query: vec![0.0; key_dim],
            key: vec![0.0; key_dim],
            value: vec![0.0; value_dim],
            decays: vec![0.0; key_dim],
        }
    }

    fn read(&mut self, inputs: &RecurrenceInputs, head: usize, token: usize) -> StepInputs<'_> {
        let RecurrenceShape { heads, key_heads, key_dim, value_dim, qk_l2_norm, query_scale, .. } = *inputs.shape;
        let at = (token * key_heads + head / (heads / key_heads)) * key_dim;
        normalize_and_scale(&inputs.q[at..at + key_dim], qk_l2_norm, query_scale, &mut self.query);
        normalize_and_scale(&inputs.k[at..at + key_dim], qk_l2_norm, 1.0, &mut self.key);
        let (value, by) =
            (&inputs.v[(token * heads + head) * value_dim..][..value_dim], inputs.write_scale(head, token));
        self.value.iter_mut().zip(value).for_each(|(w, v)| *w = v * by);
        let decay: DecayFactor<'_> = inputs.decay(head, token, &mut self.decays);
        let beta = inputs.beta.map(|s| s[token * heads + head]);
        StepInputs { query: &self.query, key: &self.key, value: &self.value, decay, beta }
    }
}
