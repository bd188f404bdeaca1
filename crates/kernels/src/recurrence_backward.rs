//! Backward passes of the recurrences: the tokens in reverse order.

use crate::recurrence::DecayFactor;

/// Interval, in tokens, at which the caller stores states; the states in between are recomputed
/// (gradient checkpointing).
pub const CHECKPOINT_INTERVAL: usize = 32;

/// Inputs of one token of one head, as [`crate::recurrence::step`] takes them.
#[derive(Clone, Copy)]
pub struct StepInputs<'a> {
    /// Query.
    pub query: &'a [f32],
    /// Key.
    pub key: &'a [f32],
    /// Value.
    pub value: &'a [f32],
    /// Decay factor of the state.
    pub decay: DecayFactor<'a>,
    /// Delta-rule step size.
    pub beta: Option<f32>,
}

/// Gradients of [`StepInputs`].
pub struct StepGradients<'a> {
    /// Gradient of the query.
    pub query: &'a mut [f32],
    /// Gradient of the key.
    pub key: &'a mut [f32],
    /// Gradient of the value.
    pub value: &'a mut [f32],
    /// Gradient of the decay factor, per key channel.
    pub decay: &'a mut [f32],
    /// Gradient of beta.
    pub beta: f32,
}

/// Backward pass of [`crate::recurrence::step`]. `before` and `after` are the states around the
/// token and `upstream` is the gradient of its output. `state` is the gradient of the state after
/// the token and becomes that of the state before it. All of `gradients` is overwritten.
pub fn step_backward(
    token: StepInputs,
    before: &[f32],
    after: &[f32],
    upstream: &[f32],
    state: &mut [f32],
    gradients: &mut StepGradients,
) {
    let width = upstream.len();
    let decay = |i: usize| match token.decay {
        DecayFactor::Scalar(by) => by,
        DecayFactor::PerKeyChannel(by) => by[i],
    };
    // The value, or for the delta rule `value - decayed state · key`.
    let mut written_vector = token.value.to_vec();
    if token.beta.is_some() {
        for (i, line) in before.chunks_exact(width).enumerate() {
            let by = decay(i) * token.key[i];
            written_vector.iter_mut().zip(line).for_each(|(written_vector, x)| *written_vector -= by * x);
        }
    }
    let beta = token.beta.unwrap_or(1.0);
    gradients.value.fill(0.0);
    for (i, (line, state)) in after.chunks_exact(width).zip(state.chunks_exact_mut(width)).enumerate() {
        let (mut read, mut written) = (0.0, 0.0);
        for c in 0..width {
            read += line[c] * upstream[c];
            state[c] += token.query[i] * upstream[c];
            written += state[c] * written_vector[c];
            gradients.value[c] += token.key[i] * state[c];
        }
        (gradients.query[i], gradients.key[i]) = (read, written * beta);
    }
    // `gradients.value` is now the gradient of the written vector.
    gradients.beta =
        written_vector.iter().zip(gradients.value.iter()).map(|(written_vector, g)| written_vector * g).sum();
    gradients.value.iter_mut().for_each(|g| *g *= beta);
    for (i, (line, state)) in before.chunks_exact(width).zip(state.chunks_exact_mut(width)).enumerate() {
        if token.beta.is_some() {
            // The delta rule also reads the decayed state: its result is subtracted from the value.
            let along_key: f32 = line.iter().zip(gradients.value.iter()).map(|(x, g)| x * g).sum();
            gradients.key[i] -= decay(i) * along_key;
            state.iter_mut().zip(gradients.value.iter()).for_each(|(s, g)| *s -= token.key[i] * g);
        }
        gradients.decay[i] = line.iter().zip(state.iter()).map(|(x, g)| x * g).sum();
        state.iter_mut().for_each(|g| *g *= decay(i));
    }
}

/// Backward pass of [`crate::recurrence::normalize_and_scale`]; adds to `dx`.
pub fn normalize_and_scale_backward(x: &[f32], l2_norm: bool, scale: f32, upstream: &[f32], dx: &mut [f32]) {
    const EPS: f32 = 1e-6;
    let square = if l2_norm { x.iter().map(|x| x * x).sum::<f32>() + EPS } else { 1.0 };
    let by = scale / square.sqrt();
    let along = if l2_norm { x.iter().zip(upstream).map(|(x, g)| x * g).sum::<f32>() / square } else { 0.0 };
    dx.iter_mut().zip(x.iter().zip(upstream)).for_each(|(dx, (x, g))| *dx += by * (g - x * along));
}

/// Backward pass of [`crate::recurrence::convolve`] over a whole sequence: `dy` and `dx` are
/// `[tokens, channels]`.
pub fn convolve_backward(dy: &[f32], kernel: &[f32], channels: usize, dx: &mut [f32]) {
    let taps = kernel.len() / channels;
    let tokens = dy.len() / channels;
    for (token, dx) in dx.chunks_exact_mut(channels).enumerate() {
        dx.fill(0.0);
        // A token reaches its own output through the last tap, and later outputs through earlier
        // taps.
        for later in 0..taps.min(tokens - token) {
            let tap = taps - 1 - later;
            let dy = &dy[(token + later) * channels..][..channels];
            for (channel, (dx, dy)) in dx.iter_mut().zip(dy).enumerate() {
                *dx += kernel[channel * taps + tap] * dy;
            }
        }
    }
}

/// Backward pass of [`crate::recurrence::wkv`] over one channel of a sequence: writes the gradients
/// of keys and values to `dk` and `dv`.
pub fn wkv_backward(keys: &[f32], values: &[f32], decay: f32, first: f32, dy: &[f32], dk: &mut [f32], dv: &mut [f32]) {
    let mut states = Vec::with_capacity(keys.len());
    let mut state = [0.0, 0.0, -1e38];
    for (&key, &value) in keys.iter().zip(values) {
        states.push(state);
        crate::recurrence::wkv(&mut state, key, value, decay, first);
    }
    // Gradients of numerator and denominator from later tokens, relative to e^top.
    let (mut d_numerator, mut d_denominator, mut top) = (0.0f32, 0.0f32, -1e38f32);
    for t in (0..keys.len()).rev() {
        let (key, value, [numerator, denominator, state_top]) = (keys[t], values[t], states[t]);
        let written = (key + top).exp();
        (dk[t], dv[t]) = (written * (value * d_numerator + d_denominator), written * d_numerator);
        let max = state_top.max(key + first);
        let (old, new) = ((state_top - max).exp(), (key + first - max).exp());
        let total = old * denominator + new;
        let out = (old * numerator + new * value) / total;
        let share = dy[t] / total;
        dk[t] += share * new * (value - out);
        dv[t] += share * new;
        let next = (top + decay).max(-max);
        let (kept, added) = ((top + decay - next).exp(), share * (-max - next).exp());
        (d_numerator, d_denominator, top) = (d_numerator * kept + added, d_denominator * kept - added * out, next);
    }
}
