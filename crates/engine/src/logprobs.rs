//! Log-probabilities of tokens: of the prompt, of generated tokens, and of the most likely ones.
//!
//! They are those of the model's logits, before penalties, biases and temperature. A row's logits
//! have the same bits in any batch, so these have too.

use crate::sample::by_probability;
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The log-probabilities that a generation records. The number is that of the most likely tokens
/// listed beside each token; it may be 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobOptions {
    /// Record those of generated tokens.
    pub generated: Option<usize>,
    /// Record those of prompt tokens, from the second one on. Turns off the prefix cache for the
    /// request, because the logits of every position are needed.
    pub prompt: Option<usize>,
}

/// The log-probability of a token, and the most likely tokens at its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f64,
    /// Its rank among all tokens; 1 is the most likely.
    pub rank: usize,
    /// The most likely tokens with their log-probabilities, in falling order.
    pub top: Vec<(u32, f64)>,
}

impl TokenLogprobs {
    /// Computes the log-probability of `token` and the `top` most likely tokens.
    pub fn of(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
        let softmax = LogSoftmax::of(logits);
        let own = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let rank = 1 + logits.iter().filter(|&&logit| logit > own).count();
        let mut order: Vec<(f32, u32)> = match top {
            0 => Vec::new(),
            _ => logits.iter().copied().zip(0..).filter(|(logit, _)| !logit.is_nan()).collect(),
        };
        if top < order.len() {
            order.select_nth_unstable_by(top, by_probability);
            order.truncate(top);
        }
        order.sort_unstable_by(by_probability);
        let top = order.into_iter().map(|(logit, token)| (token, softmax.at(logit))).collect();
        TokenLogprobs { token, logprob: softmax.at(own), rank, top }
    }
}

/// The log-softmax of a line of logits: the sum is computed once, in f64.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    best: f32,
    log_total: f64,
}

impl LogSoftmax {
    /// Computes the normalizer of a line of logits.
    pub fn of(logits: &[f32]) -> LogSoftmax {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit - best).exp()).sum();
        LogSoftmax { best, log_total: total.ln() }
    }

    /// The largest logit.
    pub fn best(&self) -> f32 {
        self.best
    }

    /// The log-probability of a logit of this line.
    pub fn at(&self, logit: f32) -> f64 {
        f64::from(logit - self.best) - self.log_total
    }
}

/// The log-probabilities of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowLogprobs {
    /// Those of the prompt tokens after the first.
    pub prompt: Vec<TokenLogprobs>,
    /// Those of the generated tokens.
    pub generated: Vec<TokenLogprobs>,
}

/// The log-probabilities of the rows of a running generation, which its thread extends and callers
/// read.
#[derive(Debug)]
pub(crate) struct LiveLogprobs(Mutex<Vec<RowLogprobs>>);

impl LiveLogprobs {
    pub fn new(rows: usize) -> LiveLogprobs {
        LiveLogprobs(Mutex::new(vec![RowLogprobs::default(); rows]))
    }

    pub fn rows(&self) -> MutexGuard<'_, Vec<RowLogprobs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_exact_and_ranked() {
        let found = TokenLogprobs::of(&[1.0, 3.0, 2.0, 3.0], 2, 3);
        let log_total = (2.0 + (-1.0_f64).exp() + (-2.0_f64).exp()).ln();
        assert!((found.logprob + 1.0 + log_total).abs() < 1e-12);
        assert_eq!((found.rank, found.token), (3, 2));
        let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 3, 2], "the lower token first among equals");
        assert!(found.top[2].1 == found.logprob);
        assert!(TokenLogprobs::of(&[1.0, 3.0], 0, 0).top.is_empty());
        assert_eq!(TokenLogprobs::of(&[1.0, 3.0], 0, 9).top.len(), 2);
    }
}
