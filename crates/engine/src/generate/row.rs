//! The tokens of one row of a generation.

use super::{Control, Finish, GenerateOptions};
use crate::logprobs::{LiveLogprobs, TokenLogprobs};
use crate::prompt_lookup::{self, LookupStats};
use crate::sample::Sampler;
use std::sync::Arc;

/// Positions after the prompt that a row initially reserves memory for.
pub(super) const RESERVED: usize = 1024;

/// A row of a generation in progress.
pub(super) struct Row {
    pub index: usize,
    /// The row so far, followed by the speculative tokens.
    pub tokens: Vec<u32>,
    /// Number of speculative tokens at the end of `tokens`.
    drafted: usize,
    pub prompt: usize,
    sampler: Sampler,
    pub finish: Option<Finish>,
    pub lookup: LookupStats,
    /// Where its log-probabilities are recorded, if they are.
    logprobs: Option<Arc<LiveLogprobs>>,
    /// The logits before the sampler changes them.
    raw_logits: Vec<f32>,
}

impl Row {
    /// A row before prefill. `copy` counts the earlier rows of the call with the same prompt.
    pub fn new(
        index: usize,
        prompt: &[u32],
        copy: usize,
        options: &GenerateOptions,
        logprobs: Option<Arc<LiveLogprobs>>,
    ) -> Row {
        // Also enough for speculative tokens, which never extend past `max_new`.
        let mut tokens = Vec::with_capacity(prompt.len() + options.max_new.min(RESERVED));
        tokens.extend_from_slice(prompt);
        let sampler = Sampler::new(&options.sampling, copy, prompt.len());
        Row {
            index,
            tokens,
            drafted: 0,
            prompt: prompt.len(),
            sampler,
            finish: None,
            lookup: LookupStats::default(),
            logprobs,
            raw_logits: Vec::new(),
        }
    }

    /// Whether a token was chosen from logits that were NaN or infinite.
    pub fn is_non_finite(&self) -> bool {
        self.sampler.non_finite
    }

    /// Number of tokens to run next: the last one and the speculative ones.
    pub fn pending(&self) -> usize {
        self.drafted + 1
    }

    /// The generated tokens, followed by the speculative ones.
    pub fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Appends speculative tokens, at most up to `max_new`.
    pub fn speculate(&mut self, options: &GenerateOptions) {
        let most = options.lookup.min(options.max_new - self.new_tokens().len() - 1);
        self.drafted = prompt_lookup::speculate(&mut self.tokens, most);
        self.lookup.passes += 1;
        self.lookup.drafted += self.drafted;
    }

    /// Records the log-probabilities of the prompt tokens that follow the positions from `first`
    /// on, whose logits are `[positions, vocab]`.
    pub fn record_prompt(&self, first: usize, logits: &[f32], vocab: usize, top: usize) {
        let Some(logprobs) = &self.logprobs else { return };
        let next = self.tokens[..self.prompt].get(first + 1..).unwrap_or_default();
        let found =
            next.iter().zip(logits.chunks_exact(vocab)).map(|(&token, line)| TokenLogprobs::of(line, token, top));
        let found: Vec<TokenLogprobs> = found.collect();
        logprobs.rows()[self.index].prompt.extend(found);
    }

    /// Samples tokens from the logits of the pending ones, `[pending, vocab]`: confirms speculative
    /// tokens while they match, plus one more. The result is the same as without speculation,
    /// because a token's logits do not depend on its batch.
    pub fn advance(
        &mut self,
        logits: &mut [f32],
        options: &GenerateOptions,
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) {
        let lines = self.drafted + 1;
        let first = self.tokens.len() - self.drafted;
        let width = logits.len() / lines;
        self.drafted = 0;
        for (accepted, logits) in (first..).zip(logits.chunks_exact_mut(width)) {
            let wanted = self.logprobs.as_ref().zip(options.logprobs.generated);
            if wanted.is_some() {
                self.raw_logits.clear();
                self.raw_logits.extend_from_slice(logits);
            }
            let token = self.sampler.choose(logits, &self.tokens[..accepted]);
            if let Some((logprobs, top)) = wanted {
                let of_token = TokenLogprobs::of(&self.raw_logits, token, top);
                logprobs.rows()[self.index].generated.push(of_token);
            }
            let matches = self.tokens.get(accepted) == Some(&token);
            if matches {
                self.lookup.accepted += 1;
            } else {
                self.tokens.truncate(accepted);
                self.tokens.push(token);
            }
            let control = watch(self.index, token);
            self.finish = if options.eos.contains(&token) {
                Some(Finish::Eos)
            } else if control == Control::Stop {
                Some(Finish::Stop)
            } else if accepted + 1 - self.prompt >= options.max_new {
                Some(Finish::Length)
            } else {
                None
            };
            if !matches || self.finish.is_some() {
                self.tokens.truncate(accepted + 1);
                return;
            }
        }
    }
}
