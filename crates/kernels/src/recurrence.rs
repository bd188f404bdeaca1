//! Recurrent layers (Mamba, delta rule, RWKV): a state that each token decays, writes and reads,
//! and short causal convolutions.
//!
//! All functions process tokens in order, so a sequence gives the same bits whole, in chunks or
//! decoded token by token.

/// Shape of a recurrence with a state of `[key_dim, value_dim]` per head. In Mamba terms, C is the
/// query, B the key and x the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrenceShape {
    /// Number of value heads, each with its own state.
    pub heads: usize,
    /// Number of query and key heads; each serves `heads / key_heads` value heads.
    pub key_heads: usize,
    /// Query and key dimension per head.
    pub key_dim: usize,
    /// Value dimension per head.
    pub value_dim: usize,
    /// Scale of the queries.
    pub query_scale: f32,
    /// Whether queries and keys are L2-normalized.
    pub qk_l2_norm: bool,
    /// Whether values are multiplied by their time step dt before they are written (Mamba).
    pub scale_values_by_dt: bool,
}

/// Factor by which a token decays the state before it writes to it.
#[derive(Clone, Copy)]
pub enum DecayFactor<'a> {
    /// One factor for the whole state.
    Scalar(f32),
    /// One factor per key channel.
    PerKeyChannel(&'a [f32]),
}

/// Processes one token of one head; `state` is `[key_dim, value_dim]`.
///
/// With `beta`, applies the delta rule: writes `beta · (value - state · key)` instead of `value`.
pub fn step(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    decay: DecayFactor,
    beta: Option<f32>,
    out: &mut [f32],
) {
    let width = value.len();
    match decay {
        DecayFactor::Scalar(by) => state.iter_mut().for_each(|x| *x *= by),
        DecayFactor::PerKeyChannel(by) => {
            state.chunks_exact_mut(width).zip(by).for_each(|(line, by)| line.iter_mut().for_each(|x| *x *= by))
        }
    }
    match beta {
        None => write(state, key, value, width),
        Some(beta) => {
            // `out` temporarily holds `state · key`.
            read(state, key, out);
            out.iter_mut().zip(value).for_each(|(predicted, value)| *predicted = (value - *predicted) * beta);
            write(state, key, out, width);
        }
    }
    read(state, query, out);
}

fn write(state: &mut [f32], key: &[f32], value: &[f32], width: usize) {
    for (line, key) in state.chunks_exact_mut(width).zip(key) {
        line.iter_mut().zip(value).for_each(|(x, v)| *x += key * v);
    }
}

fn read(state: &[f32], query: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    for (line, query) in state.chunks_exact(out.len()).zip(query) {
        out.iter_mut().zip(line).for_each(|(y, x)| *y += query * x);
    }
}

/// Writes `x · scale` to `out`; L2-normalizes `x` first if `l2_norm`.
pub fn normalize_and_scale(x: &[f32], l2_norm: bool, scale: f32, out: &mut [f32]) {
    const EPS: f32 = 1e-6;
    let by = if l2_norm { scale / (x.iter().map(|x| x * x).sum::<f32>() + EPS).sqrt() } else { scale };
    out.iter_mut().zip(x).for_each(|(y, x)| *y = x * by);
}

/// Causal conv1d of each channel. `x` and `out` are `[tokens, channels]`, `kernel` is
/// `[channels, taps]` with the current token last. `past` holds the previous `taps - 1` tokens and
/// is updated to the last ones of `x`.
pub fn convolve(x: &[f32], past: &mut [f32], kernel: &[f32], bias: Option<&[f32]>, channels: usize, out: &mut [f32]) {
    let taps = kernel.len() / channels;
    for (token, out) in out.chunks_exact_mut(channels).enumerate() {
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for tap in 0..taps {
            let at = (token + tap) * channels;
            let seen = if at < past.len() { &past[at..] } else { &x[at - past.len()..] };
            for (channel, (y, x)) in out.iter_mut().zip(seen).enumerate() {
                *y += kernel[channel * taps + tap] * x;
            }
        }
    }
    // Shift the newest tokens into `past`.
    let kept = past.len().saturating_sub(x.len());
    let new = past.len() - kept;
    past.copy_within(new.., 0);
    past[kept..].copy_from_slice(&x[x.len() - new..]);
}

/// `ln(1 + eˣ)`
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// RWKV's weighted average (WKV) for one channel: `state` holds numerator, denominator and the
/// exponent that both are relative to. `first` is the bonus of the current token (`time_first`).
pub fn wkv(state: &mut [f32], key: f32, value: f32, decay: f32, first: f32) -> f32 {
    let (numerator, denominator, top) = (state[0], state[1], state[2]);
    let max = top.max(key + first);
    let (old, new) = ((top - max).exp(), (key + first - max).exp());
    let out = (old * numerator + new * value) / (old * denominator + new);
    let max = (top + decay).max(key);
    let (old, new) = ((top + decay - max).exp(), (key - max).exp());
    state.copy_from_slice(&[old * numerator + new * value, old * denominator + new, max]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Textbook version in f64, token by token.
    fn naive(tokens: &[[Vec<f32>; 3]], decay: &[f32], beta: Option<f32>) -> Vec<Vec<f64>> {
        let (keys, width) = (decay.len(), tokens[0][2].len());
        let mut state = vec![vec![0.0f64; width]; keys];
        let mut outs = Vec::new();
        for [query, key, value] in tokens {
            for (line, by) in state.iter_mut().zip(decay) {
                line.iter_mut().for_each(|x| *x *= *by as f64);
            }
            for column in 0..width {
                let predicted: f64 = (0..keys).map(|i| state[i][column] * key[i] as f64).sum();
                let written = match beta {
                    Some(beta) => (value[column] as f64 - predicted) * beta as f64,
                    None => value[column] as f64,
                };
                (0..keys).for_each(|i| state[i][column] += key[i] as f64 * written);
            }
            outs.push((0..width).map(|c| (0..keys).map(|i| state[i][c] * query[i] as f64).sum()).collect());
        }
        outs
    }

    fn sines(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn step_agrees_with_the_textbook_recurrence() {
        for (keys, width) in [(1, 5), (16, 1), (3, 8), (8, 11)] {
            let tokens: Vec<[Vec<f32>; 3]> =
                (0..6).map(|t| [sines(keys, t), sines(keys, t + 50), sines(width, t + 99)]).collect();
            let each: Vec<f32> = (0..keys).map(|i| 0.5 + 0.4 / (i + 1) as f32).collect();
            for beta in [None, Some(0.7)] {
                let truth = naive(&tokens, &each, beta);
                let same = naive(&tokens, &vec![0.8; keys], beta);
                let (mut state, mut other) = (vec![0.0; keys * width], vec![0.0; keys * width]);
                for (token, [query, key, value]) in tokens.iter().enumerate() {
                    let mut out = vec![0.0; width];
                    step(&mut state, query, key, value, DecayFactor::PerKeyChannel(&each), beta, &mut out);
                    out.iter().zip(&truth[token]).for_each(|(a, b)| assert!((*a as f64 - b).abs() < 1e-4));
                    step(&mut other, query, key, value, DecayFactor::Scalar(0.8), beta, &mut out);
                    out.iter().zip(&same[token]).for_each(|(a, b)| assert!((*a as f64 - b).abs() < 1e-4));
                }
            }
        }
    }

    #[test]
    fn a_convolution_continues_across_calls() {
        let (channels, taps, tokens) = (3, 4, 7);
        let (x, kernel, bias) = (sines(tokens * channels, 1), sines(channels * taps, 2), sines(channels, 3));
        let mut truth = vec![0.0; tokens * channels];
        for token in 0..tokens {
            for channel in 0..channels {
                truth[token * channels + channel] = bias[channel]
                    + (0..taps)
                        .filter(|tap| token + tap + 1 >= taps)
                        .map(|tap| kernel[channel * taps + tap] * x[(token + tap + 1 - taps) * channels + channel])
                        .sum::<f32>();
            }
        }
        for cut in [0, 1, 3, 6] {
            let mut past = vec![0.0; (taps - 1) * channels];
            let mut out = vec![0.0; tokens * channels];
            let (a, b) = out.split_at_mut(cut * channels);
            convolve(&x[..cut * channels], &mut past, &kernel, Some(&bias), channels, a);
            convolve(&x[cut * channels..], &mut past, &kernel, Some(&bias), channels, b);
            out.iter().zip(&truth).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "cut at {cut}"));
        }
    }

    #[test]
    fn wkv_agrees_with_its_definition() {
        let (decay, first) = (-0.3f32, 0.5f32);
        let (keys, values) = (sines(6, 4), sines(6, 5));
        let mut state = [0.0, 0.0, -1e38];
        for now in 0..6 {
            let ours = wkv(&mut state, keys[now], values[now], decay, first);
            let weight = |t: usize| {
                let exponent = if t == now { first + keys[t] } else { (now - t - 1) as f32 * decay + keys[t] };
                (exponent as f64).exp()
            };
            let above: f64 = (0..=now).map(|t| weight(t) * values[t] as f64).sum();
            let below: f64 = (0..=now).map(weight).sum();
            assert!((ours as f64 - above / below).abs() < 1e-5, "token {now}");
        }
    }

    #[test]
    fn normalized_vectors_have_length_one_and_softplus_is_smooth() {
        let mut out = [0.0; 2];
        normalize_and_scale(&[3.0, 4.0], true, 2.0, &mut out);
        assert!((out[0] - 1.2).abs() < 1e-6 && (out[1] - 1.6).abs() < 1e-6);
        normalize_and_scale(&[3.0, 4.0], false, 2.0, &mut out);
        assert_eq!(out, [6.0, 8.0]);
        assert_eq!(softplus(30.0), 30.0);
        assert!((softplus(0.0) - 2f32.ln()).abs() < 1e-6 && softplus(-30.0) > 0.0);
    }
}
