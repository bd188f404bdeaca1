//! Recurrent ops: convolutions, state-space models, linear attention, RWKV.
//!
//! Each keeps its state in the row and processes a segment's tokens in order, so the result is
//! bit-identical whether a row runs whole, in chunks, or one token at a time.

use crate::backend::{Frame, Taps};
use crate::error::Result;
use crate::job::Segment;
use crate::program::{EdgeId, OpKind, StateDecay};
use crate::weights::Weights;
use pellucid_kernels::activation;
use pellucid_kernels::memory::DisjointMut;
use pellucid_kernels::recurrence::{self as kernel, DecayFactor, RecurrenceShape, softplus};
use std::cell::RefCell;

/// Takes the state of op `index` from a segment's row; `first` creates it at the row's first token.
fn take_state(frame: &mut Frame, index: usize, segment: &Segment, first: impl FnOnce() -> Vec<f32>) -> Vec<f32> {
    let ops = frame.program.ops().len();
    let all = &mut frame.rows[segment.slot].recurrent_states;
    all.resize_with(ops, Vec::new);
    let found = std::mem::take(&mut all[index]);
    if found.is_empty() { first() } else { found }
}

fn put_state(frame: &mut Frame, index: usize, segment: &Segment, value: Vec<f32>) {
    frame.rows[segment.slot].recurrent_states[index] = value;
}

fn tokens(segment: &Segment, width: usize) -> std::ops::Range<usize> {
    segment.token * width..(segment.token + segment.count) * width
}

/// Whether a segment's row skips this op. If so, its output is set to zero and its state stays
/// unchanged.
fn is_absent(frame: &Frame, segment: &Segment, width: usize, value: &mut [f32]) -> bool {
    let absent = frame.is_absent(segment);
    if absent {
        value[tokens(segment, width)].fill(0.0);
    }
    absent
}

pub(super) fn convolve(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Convolve { x, kernel: weight, bias, activation, out } = &program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let (kernel, bias) = (frame.weights.vector(*weight), bias.map(|b| frame.weights.vector(b)));
    let channels = program.edge(*out).width;
    let past = kernel.len() - channels;
    for segment in &frame.pass.segments {
        if is_absent(frame, segment, channels, &mut value) {
            continue;
        }
        let range = tokens(segment, channels);
        let mut seen = if past == 0 { Vec::new() } else { take_state(frame, index, segment, || vec![0.0; past]) };
        kernel::convolve(&frame.value(*x)[range.clone()], &mut seen, kernel, bias, channels, &mut value[range]);
        if past > 0 {
            put_state(frame, index, segment, seen);
        }
    }
    activation::activate(*activation, &mut value);
    frame.put(*out, value, taps)
}

pub(super) fn step(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::TimeStep { x, bias, limits, out } = &program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.reuse(*x, index, taps);
    for row in value.chunks_exact_mut(program.edge(*out).width) {
        if let Some(bias) = bias {
            row.iter_mut().zip(frame.weights.vector(*bias)).for_each(|(x, b)| *x += b);
        }
        row.iter_mut().for_each(|x| *x = softplus(*x).max(limits.0).min(limits.1));
    }
    frame.put(*out, value, taps)
}

/// The inputs of a `Recur` op.
pub(crate) struct RecurrenceInputs<'a> {
    pub shape: &'a RecurrenceShape,
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub fixed: Option<&'a [f32]>,
    pub step: &'a [f32],
    /// `A = -exp(A_log)` of a learned decay; empty for a fixed one.
    pub rate: &'a [f32],
    pub beta: Option<&'a [f32]>,
    pub skip: Option<&'a [f32]>,
}

pub(super) fn recur(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Recur { shape, state, out, .. } = &program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let mut states = taps.touches(*state).then(|| frame.alloc(*state));
    let (kind, pass) = (&program.ops()[index].kind, frame.pass);
    let each = shape.key_dim * shape.value_dim;
    let mut rate = frame.scratch(rates(kind, frame.weights).len());
    rates(kind, frame.weights).zip(&mut rate).for_each(|(from, to)| *to = from);
    for segment in &pass.segments {
        if is_absent(frame, segment, program.edge(*out).width, &mut value) {
            continue;
        }
        let mut memory = take_state(frame, index, segment, || vec![0.0; shape.heads * each]);
        let inputs = RecurrenceInputs::new(kind, shape, frame.weights, &rate, &|edge| frame.value(edge));
        let (memory_of, out_of) = (DisjointMut::new(&mut memory), DisjointMut::new(&mut value));
        let states_of = states.as_mut().map(|states| DisjointMut::new(states));
        // Heads are independent; several per task amortize the cost of starting it.
        const HEADS: usize = 8;
        frame.pool.run(shape.heads.div_ceil(HEADS), &|task| {
            for head in task * HEADS..((task + 1) * HEADS).min(shape.heads) {
                // SAFETY: each head has its own part of the state, of every token's output and of
                // every token's copy of the state.
                unsafe { inputs.head(head, segment, memory_of, out_of, states_of) };
            }
        });
        put_state(frame, index, segment, memory);
    }
    frame.give_back(rate);
    if let Some(states) = states {
        frame.put(*state, states, taps)?;
    }
    frame.put(*out, value, taps)
}

/// `A = -exp(A_log)` of a learned decay; empty for a fixed one.
pub(crate) fn rates(kind: &OpKind, weights: &Weights) -> impl ExactSizeIterator<Item = f32> {
    let learned = match kind {
        OpKind::Recur { decay: StateDecay::Learned { rate, .. }, .. } => weights.vector(*rate),
        _ => &[],
    };
    learned.iter().map(|x| -x.exp())
}

thread_local! {
    /// Scratch for one head: query, key, decays and written value.
    static HEAD: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl<'a> RecurrenceInputs<'a> {
    /// Collects the inputs of a recurrence; `rate` comes from [`rates`].
    pub fn new(
        kind: &'a OpKind,
        shape: &'a RecurrenceShape,
        weights: &'a Weights,
        rate: &'a [f32],
        value: &dyn Fn(EdgeId) -> &'a [f32],
    ) -> RecurrenceInputs<'a> {
        let OpKind::Recur { q, k, v, decay, beta, skip, .. } = kind else { unreachable!("dispatched on the kind") };
        let (fixed, step) = match decay {
            StateDecay::Fixed(by) => (Some(by.as_slice()), [].as_slice()),
            StateDecay::Learned { step, .. } => (None, value(*step)),
        };
        RecurrenceInputs {
            shape,
            q: value(*q),
            k: value(*k),
            v: value(*v),
            fixed,
            step,
            rate,
            beta: beta.map(value),
            skip: skip.map(|s| weights.vector(s)),
        }
    }

    /// Number of time steps (dt) per token.
    pub fn steps(&self) -> usize {
        self.step.len() / (self.k.len() / (self.shape.key_heads * self.shape.key_dim)).max(1)
    }

    /// The factor of a value as it enters the state: dt, or 1.
    pub fn write_scale(&self, head: usize, token: usize) -> f32 {
        if self.shape.scale_values_by_dt { self.step[token * self.steps() + head] } else { 1.0 }
    }

    /// Runs one head over a segment's tokens.
    ///
    /// # Safety
    /// No other call works on this head of this segment at the same time.
    unsafe fn head(
        &self,
        head: usize,
        segment: &Segment,
        memory: DisjointMut<f32>,
        out: DisjointMut<f32>,
        states: Option<DisjointMut<f32>>,
    ) {
        let RecurrenceShape { heads, key_heads, key_dim, value_dim, .. } = *self.shape;
        let key_head = head / (heads / key_heads);
        let each = key_dim * value_dim;
        // SAFETY: the caller does not use this head anywhere else at the same time.
        let state = unsafe { memory.part(head * each, each) };
        let mut own = HEAD.take();
        own.resize(3 * key_dim + value_dim, 0.0);
        let (query, rest) = own.split_at_mut(key_dim);
        let (key, rest) = rest.split_at_mut(key_dim);
        let (decays, written) = rest.split_at_mut(key_dim);
        for token in segment.token..segment.token + segment.count {
            let at = (token * key_heads + key_head) * key_dim;
            kernel::normalize_and_scale(
                &self.q[at..at + key_dim],
                self.shape.qk_l2_norm,
                self.shape.query_scale,
                query,
            );
            kernel::normalize_and_scale(&self.k[at..at + key_dim], self.shape.qk_l2_norm, 1.0, key);
            let value = &self.v[(token * heads + head) * value_dim..][..value_dim];
            let decay = self.decay(head, token, decays);
            let step = self.write_scale(head, token);
            written.iter_mut().zip(value).for_each(|(w, v)| *w = v * step);
            let beta = self.beta.map(|s| s[token * heads + head]);
            // SAFETY: as above.
            let out = unsafe { out.part((token * heads + head) * value_dim, value_dim) };
            kernel::step(state, query, key, written, decay, beta, out);
            if let Some(skip) = self.skip {
                out.iter_mut().zip(value).for_each(|(y, v)| *y += skip[head] * v);
            }
            if let Some(states) = states {
                // SAFETY: as above.
                unsafe { states.part((token * heads + head) * each, each) }.copy_from_slice(state);
            }
        }
        HEAD.set(own);
    }

    /// The decay of a head's state at a token: one factor, or one per key channel (written to
    /// `decays`).
    pub fn decay<'f>(&self, head: usize, token: usize, decays: &'f mut [f32]) -> DecayFactor<'f> {
        if let Some(fixed) = self.fixed {
            return DecayFactor::Scalar(fixed[head]);
        }
        if self.rate.len() == self.shape.heads && self.steps() == self.shape.heads {
            let (rate, at) = self.rate_and_step(head, token, 0);
            return DecayFactor::Scalar((self.rate[rate] * self.step[at]).exp());
        }
        for (i, decay) in decays.iter_mut().enumerate() {
            let (rate, at) = self.rate_and_step(head, token, i);
            *decay = (self.rate[rate] * self.step[at]).exp();
        }
        DecayFactor::PerKeyChannel(decays)
    }

    /// Indices of the rate and the time step of a key channel's decay.
    pub fn rate_and_step(&self, head: usize, token: usize, coordinate: usize) -> (usize, usize) {
        let (heads, keys, steps) = (self.shape.heads, self.shape.key_dim, self.steps());
        let each = head * keys + coordinate;
        (if self.rate.len() == heads { head } else { each }, token * steps + if steps == heads { head } else { each })
    }
}

pub(super) fn lru(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Lru { x, input_gate, recurrent_gate, rate, state, out } = &program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let (mut gates, mut decays) = (frame.copy(*input_gate), frame.copy(*recurrent_gate));
    activation::activate(activation::Activation::Sigmoid, &mut gates);
    activation::activate(activation::Activation::Sigmoid, &mut decays);
    let width = program.edge(*out).width;
    let mut rates = frame.scratch(width);
    rates.iter_mut().zip(frame.weights.vector(*rate)).for_each(|(rate, &x)| *rate = -8.0 * softplus(x));
    let pass = frame.pass;
    for segment in &pass.segments {
        if is_absent(frame, segment, width, &mut value) {
            continue;
        }
        let mut memory = take_state(frame, index, segment, || vec![0.0; width]);
        let x = frame.value(*x);
        for offset in 0..segment.count {
            let at = (segment.token + offset) * width;
            for channel in 0..width {
                let log = rates[channel] * decays[at + channel];
                let gated = x[at + channel] * gates[at + channel];
                // The first token of a row is not scaled down.
                let share = if segment.position + offset == 0 { 1.0 } else { (1.0 - (2.0 * log).exp()).sqrt() };
                memory[channel] = log.exp() * memory[channel] + share * gated;
                value[at + channel] = memory[channel];
            }
        }
        put_state(frame, index, segment, memory);
    }
    [gates, decays, rates].into_iter().for_each(|buffer| frame.give_back(buffer));
    if taps.touches(*state) {
        // An LRU's output is its state.
        frame.put(*state, value.clone(), taps)?;
    }
    frame.put(*out, value, taps)
}

pub(super) fn shift(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Shift { x, mix, out } = &program.ops()[index].kind else { unreachable!("dispatched on the kind") };
    let mut value = frame.alloc(*out);
    let mix = frame.weights.vector(*mix);
    let width = program.edge(*out).width;
    let pass = frame.pass;
    for segment in &pass.segments {
        if is_absent(frame, segment, width, &mut value) {
            continue;
        }
        let mut last = take_state(frame, index, segment, || vec![0.0; width]);
        let range = tokens(segment, width);
        let x = &frame.value(*x)[range.clone()];
        for (out, now) in value[range].chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            for channel in 0..width {
                out[channel] = now[channel] * mix[channel] + last[channel] * (1.0 - mix[channel]);
            }
            last.copy_from_slice(now);
        }
        put_state(frame, index, segment, last);
    }
    frame.put(*out, value, taps)
}

pub(super) fn wkv(index: usize, frame: &mut Frame, taps: &mut Taps) -> Result<()> {
    let program = frame.program;
    let OpKind::Wkv { k, v, decay, first, state, out } = &program.ops()[index].kind else {
        unreachable!("dispatched on the kind")
    };
    let mut value = frame.alloc(*out);
    let mut states = taps.touches(*state).then(|| frame.alloc(*state));
    let width = program.edge(*out).width;
    let mut decays = frame.scratch(width);
    decays.iter_mut().zip(frame.weights.vector(*decay)).for_each(|(decay, x)| *decay = -x.exp());
    let (first, pass) = (frame.weights.vector(*first), frame.pass);
    for segment in &pass.segments {
        if is_absent(frame, segment, width, &mut value) {
            continue;
        }
        let mut memory = take_state(frame, index, segment, || [0.0, 0.0, -1e38].repeat(width));
        let (k, v) = (frame.value(*k), frame.value(*v));
        for token in segment.token..segment.token + segment.count {
            for (channel, memory) in memory.chunks_exact_mut(3).enumerate() {
                let at = token * width + channel;
                value[at] = kernel::wkv(memory, k[at], v[at], decays[channel], first[channel]);
            }
            if let Some(states) = &mut states {
                states[token * 3 * width..][..3 * width].copy_from_slice(&memory);
            }
        }
        put_state(frame, index, segment, memory);
    }
    frame.give_back(decays);
    if let Some(states) = states {
        frame.put(*state, states, taps)?;
    }
    frame.put(*out, value, taps)
}
