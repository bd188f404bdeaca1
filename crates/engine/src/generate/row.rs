//! The tokens of one row of a generation.

use super::{Control, Finish, GenerateOptions};
use crate::lookup::{self, Lookup};
use crate::sample::Sampler;

/// Positions beyond the prompt that a row reserves memory for at first.
pub(super) const RESERVED: usize = 1024;

/// A row under way.
pub(super) struct Row {
    pub index: usize,
    /// The row so far, and behind it the draft tokens.
    pub tokens: Vec<u32>,
    /// How many of the tokens are drafts.
    drafted: usize,
    pub prompt: usize,
    sampler: Sampler,
    pub finish: Option<Finish>,
    pub lookup: Lookup,
}

impl Row {
    pub fn new(index: usize, prompt: &[u32], options: &GenerateOptions) -> Row {
        // Drafts included: none reaches past the last new token.
        let mut tokens = Vec::with_capacity(prompt.len() + options.max_new.min(RESERVED));
        tokens.extend_from_slice(prompt);
        let sampler = Sampler::new(&options.sampling, index);
        Row { index, tokens, drafted: 0, prompt: prompt.len(), sampler, finish: None, lookup: Lookup::default() }
    }

    /// How many tokens go through next: the last one, and the drafts after it.
    pub fn pending(&self) -> usize {
        self.drafted + 1
    }

    /// The generated tokens, and the drafts after them.
    pub fn new_tokens(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Appends draft tokens, no further than the row may come.
    pub fn draft(&mut self, options: &GenerateOptions) {
        let most = options.lookup.min(options.max_new - self.new_tokens().len() - 1);
        self.drafted = lookup::draft(&mut self.tokens, most);
        self.lookup.passes += 1;
        self.lookup.drafted += self.drafted;
    }

    /// Chooses tokens from the logits of the pending ones, `[pending, vocab]`: as many as were drafted right, and one more. Each is
    /// chosen as it would be without drafts, since a token's logits have the same bits alone and among others.
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
        for (sure, logits) in (first..).zip(logits.chunks_exact_mut(width)) {
            let token = self.sampler.choose(logits, &self.tokens[..sure]);
            let right = self.tokens.get(sure) == Some(&token);
            if right {
                self.lookup.accepted += 1;
            } else {
                self.tokens.truncate(sure);
                self.tokens.push(token);
            }
            let control = watch(self.index, token);
            self.finish = if options.eos.contains(&token) {
                Some(Finish::Eos)
            } else if control == Control::Stop {
                Some(Finish::Stop)
            } else if sure + 1 - self.prompt >= options.max_new {
                Some(Finish::Length)
            } else {
                None
            };
            if !right || self.finish.is_some() {
                self.tokens.truncate(sure + 1);
                return;
            }
        }
    }
}
