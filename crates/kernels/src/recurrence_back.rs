//! Gradients of the recurrences: the same tokens in the other order.

use crate::recurrence::Fade;

/// The tokens between two states that are remembered: the states between them are computed once more.
pub const REMEMBERED: usize = 32;

/// What one token of one head has read, as [`crate::recurrence::step`] takes it.
#[derive(Clone, Copy)]
pub struct Token<'a> {
    /// The query.
    pub query: &'a [f32],
    /// The key.
    pub key: &'a [f32],
    /// The value.
    pub value: &'a [f32],
    /// What the state was multiplied by.
    pub fade: Fade<'a>,
    /// The writing strength.
    pub strength: Option<f32>,
}

/// The gradients of what one token has read.
pub struct TokenGradient<'a> {
    /// The query's.
    pub query: &'a mut [f32],
    /// The key's.
    pub key: &'a mut [f32],
    /// The value's.
    pub value: &'a mut [f32],
    /// The fade's, for each coordinate of the key.
    pub fade: &'a mut [f32],
    /// The writing strength's.
    pub strength: f32,
}

/// The gradient of [`crate::recurrence::step`]. `before` and `after` are the state around the token, `upstream` is the gradient of its output, and
/// `state` that of the state after it, which becomes that of the state before it. All of `own` is overwritten.
pub fn step_back(
    token: Token,
    before: &[f32],
    after: &[f32],
    upstream: &[f32],
    state: &mut [f32],
    own: &mut TokenGradient,
) {
    let width = upstream.len();
    let fade = |i: usize| match token.fade {
        Fade::All(by) => by,
        Fade::Each(by) => by[i],
    };
    // What was written: the value, or what the faded state did not say about the key, times the strength.
    let mut missing = token.value.to_vec();
    if token.strength.is_some() {
        for (i, line) in before.chunks_exact(width).enumerate() {
            let by = fade(i) * token.key[i];
            missing.iter_mut().zip(line).for_each(|(missing, x)| *missing -= by * x);
        }
    }
    let strength = token.strength.unwrap_or(1.0);
    own.value.fill(0.0);
    for (i, (line, state)) in after.chunks_exact(width).zip(state.chunks_exact_mut(width)).enumerate() {
        let (mut read, mut written) = (0.0, 0.0);
        for c in 0..width {
            read += line[c] * upstream[c];
            state[c] += token.query[i] * upstream[c];
            written += state[c] * missing[c];
            own.value[c] += token.key[i] * state[c];
        }
        (own.query[i], own.key[i]) = (read, written * strength);
    }
    // `own.value` is now the gradient of what was written.
    own.strength = missing.iter().zip(own.value.iter()).map(|(missing, g)| missing * g).sum();
    own.value.iter_mut().for_each(|g| *g *= strength);
    for (i, (line, state)) in before.chunks_exact(width).zip(state.chunks_exact_mut(width)).enumerate() {
        if token.strength.is_some() {
            // The faded state was also read, and subtracted from the value.
            let said: f32 = line.iter().zip(own.value.iter()).map(|(x, g)| x * g).sum();
            own.key[i] -= fade(i) * said;
            state.iter_mut().zip(own.value.iter()).for_each(|(s, g)| *s -= token.key[i] * g);
        }
        own.fade[i] = line.iter().zip(state.iter()).map(|(x, g)| x * g).sum();
        state.iter_mut().for_each(|g| *g *= fade(i));
    }
}

/// The gradient of [`crate::recurrence::direction`], added to `dx`.
pub fn direction_back(x: &[f32], unit: bool, scale: f32, upstream: &[f32], dx: &mut [f32]) {
    const EPS: f32 = 1e-6;
    let square = if unit { x.iter().map(|x| x * x).sum::<f32>() + EPS } else { 1.0 };
    let by = scale / square.sqrt();
    let along = if unit { x.iter().zip(upstream).map(|(x, g)| x * g).sum::<f32>() / square } else { 0.0 };
    dx.iter_mut().zip(x.iter().zip(upstream)).for_each(|(dx, (x, g))| *dx += by * (g - x * along));
}

/// The gradient of [`crate::recurrence::convolve`] over the whole of a row: `dy` and `dx` are `[tokens, channels]`.
pub fn convolve_back(dy: &[f32], kernel: &[f32], channels: usize, dx: &mut [f32]) {
    let taps = kernel.len() / channels;
    let tokens = dy.len() / channels;
    for (token, dx) in dx.chunks_exact_mut(channels).enumerate() {
        dx.fill(0.0);
        // A token is seen by itself through the last tap, and by later ones through earlier taps.
        for later in 0..taps.min(tokens - token) {
            let tap = taps - 1 - later;
            let dy = &dy[(token + later) * channels..][..channels];
            for (channel, (dx, dy)) in dx.iter_mut().zip(dy).enumerate() {
                *dx += kernel[channel * taps + tap] * dy;
            }
        }
    }
}

/// The gradient of [`crate::recurrence::wkv`] over one channel of a row: what `dy` says about keys and values.
pub fn wkv_back(keys: &[f32], values: &[f32], decay: f32, first: f32, dy: &[f32], dk: &mut [f32], dv: &mut [f32]) {
    let mut states = Vec::with_capacity(keys.len());
    let mut state = [0.0, 0.0, -1e38];
    for (&key, &value) in keys.iter().zip(values) {
        states.push(state);
        crate::recurrence::wkv(&mut state, key, value, decay, first);
    }
    // What later tokens say about numerator and denominator, relative to e^top.
    let (mut above, mut below, mut top) = (0.0f32, 0.0f32, -1e38f32);
    for t in (0..keys.len()).rev() {
        let (key, value, [state_above, state_below, state_top]) = (keys[t], values[t], states[t]);
        let written = (key + top).exp();
        (dk[t], dv[t]) = (written * (value * above + below), written * above);
        let most = state_top.max(key + first);
        let (old, new) = ((state_top - most).exp(), (key + first - most).exp());
        let total = old * state_below + new;
        let out = (old * state_above + new * value) / total;
        let share = dy[t] / total;
        dk[t] += share * new * (value - out);
        dv[t] += share * new;
        let next = (top + decay).max(-most);
        let (kept, added) = ((top + decay - next).exp(), share * (-most - next).exp());
        (above, below, top) = (above * kept + added, below * kept - added * out, next);
    }
}
