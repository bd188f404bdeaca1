//! Recurrences: a state that each token decays, writes and reads, and convolutions over the last few tokens.
//!
//! Everything here goes token by token in order, so a row gives the same bits whole, in chunks and decoded.

/// A state of keys by values for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrenceShape {
    /// Heads of values, each with its own state.
    pub heads: usize,
    /// Heads of queries and keys; each serves `heads / key_heads`.
    pub key_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// What queries are multiplied by.
    pub query_scale: f32,
    /// Queries and keys are brought to length one.
    pub unit: bool,
    /// A value is written times its time step.
    pub step_writes: bool,
}

/// What a state is multiplied by before it is written.
#[derive(Clone, Copy)]
pub enum Fade<'a> {
    /// One number.
    All(f32),
    /// One for each coordinate of the key.
    Each(&'a [f32]),
}

/// One token of one head. `state` is `[key_dim, value_dim]`.
///
/// With a `strength`, only what the state does not yet say about the key is written, times the strength (the delta rule).
pub fn step(
    state: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    fade: Fade,
    strength: Option<f32>,
    out: &mut [f32],
) {
    let width = value.len();
    match fade {
        Fade::All(by) => state.iter_mut().for_each(|x| *x *= by),
        Fade::Each(by) => {
            state.chunks_exact_mut(width).zip(by).for_each(|(line, by)| line.iter_mut().for_each(|x| *x *= by))
        }
    }
    match strength {
        None => write(state, key, value, width),
        Some(strength) => {
            // `out` holds what the state says about the key until it is needed for the answer.
            read(state, key, out);
            out.iter_mut().zip(value).for_each(|(known, value)| *known = (value - *known) * strength);
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

/// `x` times `scale`, brought to length one before where `unit` asks for it.
pub fn direction(x: &[f32], unit: bool, scale: f32, out: &mut [f32]) {
    const EPS: f32 = 1e-6;
    let by = if unit { scale / (x.iter().map(|x| x * x).sum::<f32>() + EPS).sqrt() } else { scale };
    out.iter_mut().zip(x).for_each(|(y, x)| *y = x * by);
}

/// A causal convolution of each channel. `x` and `out` are `[tokens, channels]`, `kernel` is `[channels, taps]` with the
/// present token last, and `past` holds the `taps - 1` tokens before, which it exchanges for the last ones of `x`.
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
    // The newest tokens push the oldest out.
    let stay = past.len().saturating_sub(x.len());
    let come = past.len() - stay;
    past.copy_within(come.., 0);
    past[stay..].copy_from_slice(&x[x.len() - come..]);
}

/// `ln(1 + eˣ)`
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// RWKV's weighted average for one channel: `state` holds numerator, denominator and the exponent they are relative to.
pub fn wkv(state: &mut [f32], key: f32, value: f32, decay: f32, first: f32) -> f32 {
    let (above, below, top) = (state[0], state[1], state[2]);
    let most = top.max(key + first);
    let (old, new) = ((top - most).exp(), (key + first - most).exp());
    let out = (old * above + new * value) / (old * below + new);
    let most = (top + decay).max(key);
    let (old, new) = ((top + decay - most).exp(), (key - most).exp());
    state.copy_from_slice(&[old * above + new * value, old * below + new, most]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook form: matrices of f64, one token after the other.
    fn naive(tokens: &[[Vec<f32>; 3]], fade: &[f32], strength: Option<f32>) -> Vec<Vec<f64>> {
        let (keys, width) = (fade.len(), tokens[0][2].len());
        let mut state = vec![vec![0.0f64; width]; keys];
        let mut outs = Vec::new();
        for [query, key, value] in tokens {
            for (line, by) in state.iter_mut().zip(fade) {
                line.iter_mut().for_each(|x| *x *= *by as f64);
            }
            for column in 0..width {
                let known: f64 = (0..keys).map(|i| state[i][column] * key[i] as f64).sum();
                let written = match strength {
                    Some(strength) => (value[column] as f64 - known) * strength as f64,
                    None => value[column] as f64,
                };
                (0..keys).for_each(|i| state[i][column] += key[i] as f64 * written);
            }
            outs.push((0..width).map(|c| (0..keys).map(|i| state[i][c] * query[i] as f64).sum()).collect());
        }
        outs
    }

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + seed * 13) as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn a_state_is_decayed_written_and_read_as_in_the_textbook() {
        for (keys, width) in [(1, 5), (16, 1), (3, 8), (8, 11)] {
            let tokens: Vec<[Vec<f32>; 3]> =
                (0..6).map(|t| [numbers(keys, t), numbers(keys, t + 50), numbers(width, t + 99)]).collect();
            let each: Vec<f32> = (0..keys).map(|i| 0.5 + 0.4 / (i + 1) as f32).collect();
            for strength in [None, Some(0.7)] {
                let truth = naive(&tokens, &each, strength);
                let same = naive(&tokens, &vec![0.8; keys], strength);
                let (mut state, mut other) = (vec![0.0; keys * width], vec![0.0; keys * width]);
                for (token, [query, key, value]) in tokens.iter().enumerate() {
                    let mut out = vec![0.0; width];
                    step(&mut state, query, key, value, Fade::Each(&each), strength, &mut out);
                    out.iter().zip(&truth[token]).for_each(|(a, b)| assert!((*a as f64 - b).abs() < 1e-4));
                    step(&mut other, query, key, value, Fade::All(0.8), strength, &mut out);
                    out.iter().zip(&same[token]).for_each(|(a, b)| assert!((*a as f64 - b).abs() < 1e-4));
                }
            }
        }
    }

    #[test]
    fn a_convolution_sees_its_last_tokens_across_calls() {
        let (channels, taps, tokens) = (3, 4, 7);
        let (x, kernel, bias) = (numbers(tokens * channels, 1), numbers(channels * taps, 2), numbers(channels, 3));
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
    fn the_weighted_average_is_the_one_of_its_definition() {
        let (decay, first) = (-0.3f32, 0.5f32);
        let (keys, values) = (numbers(6, 4), numbers(6, 5));
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
    fn a_direction_has_length_one_and_softplus_is_smooth() {
        let mut out = [0.0; 2];
        direction(&[3.0, 4.0], true, 2.0, &mut out);
        assert!((out[0] - 1.2).abs() < 1e-6 && (out[1] - 1.6).abs() < 1e-6);
        direction(&[3.0, 4.0], false, 2.0, &mut out);
        assert_eq!(out, [6.0, 8.0]);
        assert_eq!(softplus(30.0), 30.0);
        assert!((softplus(0.0) - 2f32.ln()).abs() < 1e-6 && softplus(-30.0) > 0.0);
    }
}
