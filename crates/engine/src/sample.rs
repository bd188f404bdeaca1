//! Samples a token from logits.

use pellucid_kernels::softmax::softmax;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// Sampling settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy (argmax).
    pub temperature: f32,
    /// Sample only from the `k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Nucleus sampling: only the most likely tokens that together reach this probability.
    pub top_p: f32,
    /// Only tokens with at least this fraction of the top token's probability.
    pub min_p: f32,
    /// Divides positive logits of tokens already in the row by this factor and multiplies negative
    /// ones; 1 has no effect.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each generated token; 0 has no effect.
    pub presence_penalty: f32,
    /// Subtracted from the logit of each generated token once for each occurrence; 0 has no effect.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, before penalties and temperature.
    pub logit_bias: Vec<(u32, f32)>,
    /// RNG seed. The same seed gives the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Describes the first invalid setting, if any.
    pub fn problem(&self) -> Option<String> {
        let wrong = |name: &str, value: f32, range: &str| Some(format!("{name} is {value}; it must be {range}"));
        match self {
            s if !(s.temperature >= 0.0 && s.temperature.is_finite()) => {
                wrong("temperature", s.temperature, "0 or more")
            }
            s if !(s.top_p > 0.0 && s.top_p <= 1.0) => wrong("top_p", s.top_p, "more than 0 and at most 1"),
            s if !(0.0..=1.0).contains(&s.min_p) => wrong("min_p", s.min_p, "0 to 1"),
            s if !(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite()) => {
                wrong("repetition_penalty", s.repetition_penalty, "more than 0")
            }
            s if !s.presence_penalty.is_finite() => wrong("presence_penalty", s.presence_penalty, "finite"),
            s if !s.frequency_penalty.is_finite() => wrong("frequency_penalty", s.frequency_penalty, "finite"),
            s if s.logit_bias.iter().any(|(_, bias)| bias.is_nan()) => wrong("logit_bias", f32::NAN, "a number"),
            _ => None,
        }
    }
}

/// The sampler of one row: its settings, RNG and scratch buffers.
pub(crate) struct Sampler {
    sampling: Sampling,
    rng: Pcg64Mcg,
    candidates: Vec<(f32, u32)>,
    /// The distinct tokens among the first `scanned` tokens of the row, and the same as a flag per
    /// token of the vocabulary.
    seen: Vec<u32>,
    is_seen: Vec<bool>,
    scanned: usize,
    /// The largest logit was NaN or infinite at some step.
    pub non_finite: bool,
    /// Length of the prompt, whose tokens the presence and frequency penalties leave out.
    prompt: usize,
    /// The distinct generated tokens, and how often each token of the vocabulary was generated.
    generated: Vec<u32>,
    counts: Vec<u32>,
    counted: usize,
}

impl Sampler {
    /// A sampler that draws from random stream `stream` of the seed, for a row whose first `prompt`
    /// tokens are given.
    pub fn new(sampling: &Sampling, stream: usize, prompt: usize) -> Sampler {
        let rng = Pcg64Mcg::seed_from_u64(sampling.seed ^ (stream as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Sampler {
            sampling: sampling.clone(),
            rng,
            candidates: Vec::new(),
            seen: Vec::new(),
            is_seen: Vec::new(),
            scanned: 0,
            non_finite: false,
            prompt,
            generated: Vec::new(),
            counts: Vec::new(),
            counted: prompt,
        }
    }

    /// Samples a token. `row` are the row's tokens so far; each call must extend those of the
    /// previous call.
    pub fn choose(&mut self, logits: &mut [f32], row: &[u32]) -> u32 {
        for &(token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        let penalty = self.sampling.repetition_penalty;
        if penalty != 1.0 {
            self.update_seen(row, logits.len());
            for &token in &self.seen {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        let Sampling { presence_penalty, frequency_penalty, .. } = self.sampling;
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            self.count_generated(row, logits.len());
            for &token in &self.generated {
                logits[token as usize] -= presence_penalty + frequency_penalty * self.counts[token as usize] as f32;
            }
        }
        let first = argmax(logits);
        self.non_finite |= !logits[first as usize].is_finite();
        if self.sampling.temperature == 0.0 {
            return first;
        }
        self.draw(logits, first)
    }

    fn count_generated(&mut self, row: &[u32], vocab: usize) {
        self.counts.resize(vocab, 0);
        for &token in row.get(self.counted.max(self.prompt)..).unwrap_or_default() {
            if self.counts[token as usize] == 0 {
                self.generated.push(token);
            }
            self.counts[token as usize] += 1;
        }
        self.counted = row.len().max(self.prompt);
    }

    fn update_seen(&mut self, row: &[u32], vocab: usize) {
        self.is_seen.resize(vocab, false);
        // Reserve the maximum, so that later tokens allocate nothing.
        self.seen.reserve(vocab.saturating_sub(self.seen.len()));
        for &token in &row[self.scanned..] {
            if !std::mem::replace(&mut self.is_seen[token as usize], true) {
                self.seen.push(token);
            }
        }
        self.scanned = row.len();
    }

    /// Draws a token; `first` is the one with the largest logit.
    fn draw(&mut self, logits: &mut [f32], first: u32) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let top = logits[first as usize];
        if !top.is_finite() {
            return first;
        }
        // Subtract before dividing: a temperature near zero then gives -inf, not inf - inf = NaN.
        for x in logits.iter_mut() {
            *x = if x.is_nan() { f32::NEG_INFINITY } else { (*x - top) / temperature };
        }
        softmax(logits, None);
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.reserve(logits.len());
        candidates.extend(logits.iter().zip(0..).filter(|(p, _)| **p > 0.0).map(|(&p, token)| (p, token)));
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, by_probability);
            candidates.truncate(top_k);
            candidates.sort_unstable_by(by_probability);
        }
        if top_p < 1.0 {
            keep_top_p(candidates, top_p);
        }
        let least = min_p * logits[first as usize];
        candidates.retain(|(p, _)| *p >= least);
        let total: f64 = candidates.iter().map(|(p, _)| *p as f64).sum();
        let mut left = (self.rng.next_u64() >> 40) as f64 / (1u64 << 24) as f64 * total;
        for &(p, token) in candidates.iter() {
            left -= p as f64;
            if left < 0.0 {
                return token;
            }
        }
        candidates.last().map_or(first, |&(_, token)| token)
    }
}

/// Orders by descending probability; among equals the lower token first, as in the reference's
/// sort.
pub(crate) fn by_probability(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps the most likely tokens until they reach `top_p` of the total probability. Sorts in growing
/// blocks, so that little more than the kept tokens is sorted.
fn keep_top_p(candidates: &mut Vec<(f32, u32)>, top_p: f32) {
    let enough = top_p as f64 * candidates.iter().map(|(p, _)| *p as f64).sum::<f64>();
    let (mut before, mut kept, mut block) = (0.0, 0, 64);
    while kept < candidates.len() {
        let rest = &mut candidates[kept..];
        let sorted = block.min(rest.len());
        if sorted < rest.len() {
            rest.select_nth_unstable_by(sorted, by_probability);
        }
        rest[..sorted].sort_unstable_by(by_probability);
        for (p, _) in &rest[..sorted] {
            if before >= enough && kept > 0 {
                candidates.truncate(kept);
                return;
            }
            before += *p as f64;
            kept += 1;
        }
        block *= 4;
    }
}

/// The token with the largest logit; the lowest one among equals. NaN is ignored.
pub fn argmax(logits: &[f32]) -> u32 {
    // First the maximum, then its index: both loops vectorize, a single argmax loop does not.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
    }
    let top = lanes.into_iter().fold(rest, f32::max);
    logits.iter().position(|&x| x == top).unwrap_or(0) as u32
}

#[doc(hidden)]
pub use self::argmax as most_likely; // former name

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(&sampling, 0, 0);
        (0..n).map(|_| sampler.choose(&mut logits.to_vec(), &[])).collect()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_first_among_equals() {
        assert_eq!(draws(Sampling::default(), &[1.0, 3.0, 3.0, 2.0], 2), [1, 1]);
        let mut logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32).collect();
        assert_eq!(argmax(&logits), 27);
        (logits[3], logits[27]) = (f32::NAN, f32::NAN);
        assert_eq!(argmax(&logits), 54, "NaN is not chosen");
        assert_eq!(argmax(&[f32::NEG_INFINITY; 20]), 0);
    }

    #[test]
    fn top_p_with_partial_sorting_equals_full_sorting() {
        let shares: Vec<(f32, u32)> = (0..3000).map(|token| (((token * 7919) % 257) as f32 + 1.0, token)).collect();
        let whole: f64 = shares.iter().map(|(p, _)| *p as f64).sum();
        for top_p in [1e-6, 0.01, 0.3, 0.9, 0.999_999] {
            let (mut ours, mut all) = (shares.clone(), shares.clone());
            keep_top_p(&mut ours, top_p);
            all.sort_by(by_probability);
            let mut before = 0.0;
            all.retain(|(p, _)| {
                let stays = before < top_p as f64 * whole;
                before += *p as f64;
                stays
            });
            assert_eq!(ours, all, "{top_p}");
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_filter_tokens() {
        let logits = [5.0, 4.0, 3.0, -50.0];
        let hot = Sampling { temperature: 1.0, ..Sampling::default() };
        let only = |s: Sampling| {
            let mut seen = draws(s, &logits, 400);
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(only(hot.clone()), [0, 1, 2]);
        assert_eq!(only(Sampling { top_k: 2, ..hot.clone() }), [0, 1]);
        // The first token has probability 0.665, so it alone reaches 0.6.
        assert_eq!(only(Sampling { top_p: 0.6, ..hot.clone() }), [0]);
        // e^-1 = 0.37 of the top probability stays, e^-2 = 0.14 is dropped.
        assert_eq!(only(Sampling { min_p: 0.2, ..hot.clone() }), [0, 1]);
    }

    #[test]
    fn frequencies_follow_the_softmax_and_seeds_repeat() {
        let hot = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let seen = draws(hot.clone(), &[2f32.ln(), 0.0], 3000);
        let share = seen.iter().filter(|&&t| t == 0).count() as f64 / 3000.0;
        assert!((share - 2.0 / 3.0).abs() < 0.03, "{share}");
        assert_eq!(seen, draws(hot.clone(), &[2f32.ln(), 0.0], 3000));
        assert_ne!(seen, draws(Sampling { seed: 8, ..hot }, &[2f32.ln(), 0.0], 3000));
    }

    #[test]
    fn the_repetition_penalty_lowers_seen_tokens() {
        let sampler = || Sampler::new(&Sampling { repetition_penalty: 2.0, ..Sampling::default() }, 0, 0);
        assert_eq!(sampler().choose(&mut [3.0, 2.0], &[0, 0]), 1);
        assert_eq!(sampler().choose(&mut [-1.0, -1.5], &[0]), 1);
        let mut reused = sampler();
        assert_eq!(reused.choose(&mut [3.0, 2.0, 1.0], &[0]), 1);
        assert_eq!(reused.choose(&mut [3.0, 2.0, 1.8], &[0, 1]), 2);
    }

    #[test]
    fn presence_and_frequency_penalties_count_generated_tokens_only() {
        let sampler = |presence_penalty, frequency_penalty| {
            Sampler::new(&Sampling { presence_penalty, frequency_penalty, ..Sampling::default() }, 0, 1)
        };
        assert_eq!(sampler(2.0, 0.0).choose(&mut [3.0, 2.0], &[0]), 0, "the prompt is not penalized");
        assert_eq!(sampler(2.0, 0.0).choose(&mut [3.0, 2.0], &[0, 0]), 1);
        assert_eq!(sampler(0.0, 0.6).choose(&mut [3.0, 2.0], &[0, 0]), 0);
        assert_eq!(sampler(0.0, 0.6).choose(&mut [3.0, 2.0], &[0, 0, 0]), 1);
        let mut reused = sampler(0.0, 0.6);
        assert_eq!(reused.choose(&mut [3.0, 2.0], &[0, 0]), 0);
        assert_eq!(reused.choose(&mut [3.0, 2.0], &[0, 0, 0]), 1);
        assert_eq!(sampler(-5.0, 0.0).choose(&mut [3.0, 2.0], &[0, 1]), 1, "a negative penalty is a bonus");
    }

    #[test]
    fn the_logit_bias_is_added_before_the_choice() {
        let biased = |logit_bias: Vec<(u32, f32)>| {
            Sampler::new(&Sampling { logit_bias, ..Sampling::default() }, 0, 0).choose(&mut [3.0, 2.0, 1.0], &[])
        };
        assert_eq!(biased(vec![(2, 100.0)]), 2);
        assert_eq!(biased(vec![(0, -100.0), (1, -0.5)]), 1);
    }
}
