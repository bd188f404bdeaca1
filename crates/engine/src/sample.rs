//! From logits to a token.

use pellucid_kernels::softmax::softmax;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::cmp::Ordering;

/// How a token is chosen from logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; higher is more varied.
    pub temperature: f32,
    /// Only the `k` most likely tokens; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the most likely one.
    pub min_p: f32,
    /// Logits of tokens already in the row are divided by this (multiplied, where negative).
    pub repetition_penalty: f32,
    /// Same seed, same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// What is wrong with these settings, if anything.
    pub fn problem(&self) -> Option<String> {
        let wrong = |name: &str, value: f32, range: &str| Some(format!("{name} is {value}, and takes {range}"));
        match self {
            s if !(s.temperature >= 0.0 && s.temperature.is_finite()) => {
                wrong("temperature", s.temperature, "0 or more")
            }
            s if !(s.top_p > 0.0 && s.top_p <= 1.0) => wrong("top_p", s.top_p, "more than 0 and at most 1"),
            s if !(0.0..=1.0).contains(&s.min_p) => wrong("min_p", s.min_p, "0 to 1"),
            s if !(s.repetition_penalty > 0.0 && s.repetition_penalty.is_finite()) => {
                wrong("repetition_penalty", s.repetition_penalty, "more than 0")
            }
            _ => None,
        }
    }
}

/// A row's own source of chance.
pub(crate) struct Sampler {
    sampling: Sampling,
    random: Pcg64Mcg,
    order: Vec<(f32, u32)>,
    /// The different tokens among the first `looked_at` of the row, and whether each token is one of them.
    seen: Vec<u32>,
    is_seen: Vec<bool>,
    looked_at: usize,
}

impl Sampler {
    pub fn new(sampling: &Sampling, row: usize) -> Sampler {
        // Rows draw from different streams, so that equal prompts differ and a row does not depend on its neighbours.
        let random = Pcg64Mcg::seed_from_u64(sampling.seed ^ (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Sampler {
            sampling: sampling.clone(),
            random,
            order: Vec::new(),
            seen: Vec::new(),
            is_seen: Vec::new(),
            looked_at: 0,
        }
    }

    /// Chooses a token; `row` are the row's tokens so far, which only ever become more.
    pub fn choose(&mut self, logits: &mut [f32], row: &[u32]) -> u32 {
        let penalty = self.sampling.repetition_penalty;
        if penalty != 1.0 {
            self.look_at(row, logits.len());
            for &token in &self.seen {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        if self.sampling.temperature == 0.0 {
            return most_likely(logits);
        }
        self.draw(logits)
    }

    fn look_at(&mut self, row: &[u32], vocab: usize) {
        self.is_seen.resize(vocab, false);
        // Room for all that can be seen, so that later tokens allocate nothing.
        self.seen.reserve(vocab.saturating_sub(self.seen.len()));
        for &token in &row[self.looked_at..] {
            if !std::mem::replace(&mut self.is_seen[token as usize], true) {
                self.seen.push(token);
            }
        }
        self.looked_at = row.len();
    }

    fn draw(&mut self, logits: &mut [f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let first = most_likely(logits);
        let top = logits[first as usize];
        if !top.is_finite() {
            return first;
        }
        // The difference first: a temperature near zero then makes it minus infinity, not infinity minus infinity.
        for x in logits.iter_mut() {
            *x = if x.is_nan() { f32::NEG_INFINITY } else { (*x - top) / temperature };
        }
        softmax(logits, None);
        let order = &mut self.order;
        order.clear();
        order.reserve(logits.len());
        order.extend(logits.iter().zip(0..).filter(|(p, _)| **p > 0.0).map(|(&p, token)| (p, token)));
        if top_k > 0 && top_k < order.len() {
            order.select_nth_unstable_by(top_k - 1, likelier);
            order.truncate(top_k);
            order.sort_unstable_by(likelier);
        }
        if top_p < 1.0 {
            keep_likeliest(order, top_p);
        }
        let least = min_p * logits[first as usize];
        order.retain(|(p, _)| *p >= least);
        let total: f64 = order.iter().map(|(p, _)| *p as f64).sum();
        let mut left = (self.random.next_u64() >> 40) as f64 / (1u64 << 24) as f64 * total;
        for &(p, token) in order.iter() {
            left -= p as f64;
            if left < 0.0 {
                return token;
            }
        }
        order.last().map_or(first, |&(_, token)| token)
    }
}

/// The likelier first; among equals the earlier token, as in the reference's sort.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps a token while those likelier than it have not yet reached `top_p` of the whole. Only what comes near staying is ever sorted.
fn keep_likeliest(order: &mut Vec<(f32, u32)>, top_p: f32) {
    let enough = top_p as f64 * order.iter().map(|(p, _)| *p as f64).sum::<f64>();
    let (mut before, mut kept, mut block) = (0.0, 0, 64);
    while kept < order.len() {
        let rest = &mut order[kept..];
        let sorted = block.min(rest.len());
        if sorted < rest.len() {
            rest.select_nth_unstable_by(sorted, likelier);
        }
        rest[..sorted].sort_unstable_by(likelier);
        for (p, _) in &rest[..sorted] {
            if before >= enough && kept > 0 {
                order.truncate(kept);
                return;
            }
            before += *p as f64;
            kept += 1;
        }
        block *= 4;
    }
}

/// The token of the largest logit, the first among equals.
pub fn most_likely(logits: &[f32]) -> u32 {
    // The largest in lanes, then where it stands: two loops that vectorise, where one that keeps the place does not.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder().iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
    }
    let top = lanes.into_iter().fold(rest, f32::max);
    logits.iter().position(|&x| x == top).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], n: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(&sampling, 0);
        (0..n).map(|_| sampler.choose(&mut logits.to_vec(), &[])).collect()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_first_among_equals() {
        assert_eq!(draws(Sampling::default(), &[1.0, 3.0, 3.0, 2.0], 2), [1, 1]);
        let mut logits: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32).collect();
        assert_eq!(most_likely(&logits), 27);
        (logits[3], logits[27]) = (f32::NAN, f32::NAN);
        assert_eq!(most_likely(&logits), 54, "what is no number is not chosen");
        assert_eq!(most_likely(&[f32::NEG_INFINITY; 20]), 0);
    }

    #[test]
    fn partial_sorting_keeps_what_full_sorting_would() {
        let shares: Vec<(f32, u32)> = (0..3000).map(|token| (((token * 7919) % 257) as f32 + 1.0, token)).collect();
        let whole: f64 = shares.iter().map(|(p, _)| *p as f64).sum();
        for top_p in [1e-6, 0.01, 0.3, 0.9, 0.999_999] {
            let (mut ours, mut all) = (shares.clone(), shares.clone());
            keep_likeliest(&mut ours, top_p);
            all.sort_by(likelier);
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
    fn filters_leave_what_they_should() {
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
        // The first token has 0.665 of the whole: it alone reaches 0.6.
        assert_eq!(only(Sampling { top_p: 0.6, ..hot.clone() }), [0]);
        // e^-1 = 0.37 of the best stays, e^-2 = 0.14 goes.
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
    fn the_repetition_penalty_pushes_down_what_was_seen() {
        let sampler = || Sampler::new(&Sampling { repetition_penalty: 2.0, ..Sampling::default() }, 0);
        assert_eq!(sampler().choose(&mut [3.0, 2.0], &[0, 0]), 1);
        assert_eq!(sampler().choose(&mut [-1.0, -1.5], &[0]), 1);
        let mut goes_on = sampler();
        assert_eq!(goes_on.choose(&mut [3.0, 2.0, 1.0], &[0]), 1);
        assert_eq!(goes_on.choose(&mut [3.0, 2.0, 1.8], &[0, 1]), 2);
    }
}
