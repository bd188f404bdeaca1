//! Options and results of text generation.

use pellucid_engine::{
    Capture, CaptureOptions, Finish, Interrupt, LookupStats, Mark, PrefixCache, RowAdapters, Sampling, SavedValue, Site,
};
use std::time::Duration;

/// Callback for generated text: the row and a piece of its text.
pub type OnText<'a> = &'a mut dyn FnMut(usize, &str);

/// Options of text generation.
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
    /// Maximum number of new tokens per row.
    pub max_new: usize,
    /// Sampling settings; greedy by default.
    pub sampling: Sampling,
    /// Stop strings, which end a row and are not part of its text.
    pub stop: Vec<String>,
    /// Tokens that end a row; the model's end-of-text tokens if absent.
    pub eos: Option<Vec<u32>>,
    /// Called with a row and its new text during generation. The pieces of a row concatenate to the
    /// result's text: text that may become part of a stop string is held back.
    pub on_text: Option<OnText<'a>>,
    /// Prompt tokens per row and pass (chunked prefill).
    pub chunk: Option<usize>,
    /// Maximum number of speculative tokens per step, proposed by prompt lookup; 0 turns it off.
    /// Never changes the output.
    pub lookup: usize,
    /// Maximum number of the model's threads to use; all if absent. Never changes the output.
    pub threads: Option<usize>,
    /// Prefix cache, which later calls reuse. Never changes the output.
    pub prefixes: Option<PrefixCache>,
    /// Polled during the run; stops it on request.
    pub interrupt: Option<Interrupt>,
    /// How captures are stored: as bf16, or in a memory-mapped file above a limit.
    pub captures: CaptureOptions,
    /// The adapter of each row; see [`Model::attach_adapter`](crate::Model::attach_adapter).
    pub adapters: RowAdapters,
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
            captures: engine.captures,
            adapters: engine.adapters,
        }
    }
}

/// One generated row.
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
    /// Speculative tokens that prompt lookup proposed, and those that were accepted.
    pub lookup: LookupStats,
}

/// Result of a generation.
#[derive(Debug)]
pub struct Generation {
    /// One row per prompt.
    pub rows: Vec<GeneratedText>,
    /// The plan's captures: `prompt + generated - 1` positions of each row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves, step by step.
    pub saved: Vec<SavedValue>,
    /// Positions at which the plan's marks held.
    pub marks: Vec<Mark>,
    /// Sites that a pattern matched but that their layers do not have.
    pub absent: Vec<Site>,
    /// Time of the prefill.
    pub prefill: Duration,
    /// Time of the decoding steps.
    pub decode: Duration,
}
