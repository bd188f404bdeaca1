//! From logits to a token.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

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
}

impl Sampler {
    pub fn new(sampling: &Sampling, row: usize) -> Sampler {
        // Rows draw from different streams, so that equal prompts differ and a row does not depend on its neighbours.
        let random = Pcg64Mcg::seed_from_u64(sampling.seed ^ (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Sampler { sampling: sampling.clone(), random, order: Vec::new() }
    }

    /// Chooses a token; `seen` are the row's tokens so far.
    pub fn choose(&mut self, logits: &mut [f32], seen: &[u32]) -> u32 {
        let penalty = self.sampling.repetition_penalty;
        if penalty != 1.0 {
            let mut seen = seen.to_vec();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        if self.sampling.temperature == 0.0 {
            return most_likely(logits);
        }
        self.draw(logits)
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let order = &mut self.order;
        order.clear();
        order.extend(logits.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(token, &x)| (x, token as u32)));
        if order.is_empty() {
            return 0;
        }
        // Equal logits keep the order of their tokens, as in the reference's sort.
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        if top_k > 0 {
            order.truncate(top_k);
        }
        let (top, first) = order[0];
        if top.is_infinite() {
            return first;
        }
        // The difference first: a temperature near zero then makes it minus infinity, not infinity minus infinity.
        order.iter_mut().for_each(|(x, _)| *x = ((*x - top) / temperature).exp());
        // A token stays while those before it have not yet reached top_p.
        let total: f32 = order.iter().map(|(p, _)| p).sum();
        let mut before = 0.0;
        let kept = order.iter().take_while(|(p, _)| {
            let stays = before < top_p * total;
            before += p;
            stays
        });
        let kept = kept.count().max(1);
        order.truncate(kept);
        order.retain(|(p, _)| *p >= min_p);
        let total: f32 = order.iter().map(|(p, _)| p).sum();
        let mut left = (self.random.next_u64() >> 40) as f32 / (1u64 << 24) as f32 * total;
        for &(p, token) in order.iter() {
            left -= p;
            if left < 0.0 {
                return token;
            }
        }
        order[order.len() - 1].1
    }
}

/// The token of the largest logit, the first among equals.
pub fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] || logits[best].is_nan() {
            best = token;
        }
    }
    best as u32
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
        let mut sampler = Sampler::new(&Sampling { repetition_penalty: 2.0, ..Sampling::default() }, 0);
        assert_eq!(sampler.choose(&mut [3.0, 2.0], &[0, 0]), 1);
        assert_eq!(sampler.choose(&mut [-1.0, -1.5], &[0]), 1);
    }
}
