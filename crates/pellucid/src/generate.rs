//! Generating text.

use pellucid_engine::{Capture, Finish, Interrupt, Lookup, PrefixCache, Sampling, Saved, Site};
use std::time::Duration;

/// A function that is called with a row and a piece of its text.
pub type OnText<'a> = &'a mut dyn FnMut(usize, &str);

/// How to generate text.
///
/// ```
/// use pellucid::{GenerateOptions, Sampling};
/// let options = GenerateOptions {
///     max_new: 20,
///     sampling: Sampling { temperature: 0.8, seed: 7, ..Sampling::default() },
///     stop: vec!["\n".into()],
///     ..GenerateOptions::default()
/// };
/// # let _ = options;
/// ```
pub struct GenerateOptions<'a> {
    /// At most this many new tokens a row.
    pub max_new: usize,
    /// How tokens are chosen; greedily by default.
    pub sampling: Sampling,
    /// Strings that end a row. They are not part of its text.
    pub stop: Vec<String>,
    /// Tokens that end a row; the model's own end-of-text tokens where absent.
    pub eos: Option<Vec<u32>>,
    /// Called with a row and its new text as it is generated. The pieces may contain a stop string; the result's text does not.
    pub on_text: Option<OnText<'a>>,
    /// Prompt tokens of a row that go through at once.
    pub chunk: Option<usize>,
    /// At most this many tokens are proposed from the row's own text and checked in one pass (prompt lookup); 0 proposes none.
    /// It never changes a token.
    pub lookup: usize,
    /// At most this many of the model's threads; all of them where absent. It never changes a token.
    pub threads: Option<usize>,
    /// Computed prefixes of rows that later calls reuse. It never changes a token.
    pub prefixes: Option<PrefixCache>,
    /// Polled now and then whether to stop.
    pub interrupt: Option<Interrupt>,
}

impl Default for GenerateOptions<'_> {
    fn default() -> Self {
        let engine = pellucid_engine::GenerateOptions::default();
        GenerateOptions {
            max_new: engine.max_new,
            sampling: engine.sampling,
            stop: Vec::new(),
            eos: None,
            on_text: None,
            chunk: engine.chunk,
            lookup: engine.lookup,
            threads: engine.threads,
            prefixes: engine.prefixes,
            interrupt: engine.interrupt,
        }
    }
}

/// A row that was generated.
#[derive(Clone, Debug)]
pub struct GeneratedText {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The new tokens, the end-of-text token included.
    pub tokens: Vec<u32>,
    /// The new text, without the stop string that ended it; empty for a model without a tokenizer.
    pub text: String,
    /// Why the row ended.
    pub finish: Finish,
    /// How many tokens prompt lookup proposed, and how many were right.
    pub lookup: Lookup,
}

/// What a generation returns.
#[derive(Debug)]
pub struct Generation {
    /// One for each prompt.
    pub rows: Vec<GeneratedText>,
    /// What the plan captured: `prompt + generated - 1` positions of each row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves, step by step.
    pub saved: Vec<Saved>,
    /// Sites that a pattern named and that their layers do not have.
    pub absent: Vec<Site>,
    /// Time in the prompts.
    pub prefill: Duration,
    /// Time in the steps after them.
    pub decode: Duration,
}
