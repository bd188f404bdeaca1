//! Generation: prefill, then one token at a time, with the plan active at every step.
//!
//! A `Decoder` (`decoder.rs`) has a job and the tokens of its rows (`row.rs`). It chooses the input
//! tokens of each pass and samples new ones from the logits. [`Model::generate`] runs one decoder
//! to its end; a [`Batch`] (`batch.rs`) runs several by continuous batching: they share passes,
//! and join and leave between them.

mod batch;
mod decoder;
mod row;

pub use batch::{Batch, BatchShare, RequestId};
pub(crate) use decoder::{CheckedGeneration, check};

use crate::adapter::RowAdapters;
use crate::error::Result;
use crate::exec::Executor;
use crate::interrupt::{Interrupt, InterruptPoller};
use crate::job::{CaptureOptions, SavedValue};
use crate::logprobs::{LogprobOptions, RowLogprobs};
use crate::memory::TransferStats;
use crate::model::Model;
use crate::non_finite::NonFinite;
use crate::plan::{Capture, Mark, Plan};
use crate::prefix::PrefixCache;
use crate::prompt_lookup::LookupStats;
use crate::sample::Sampling;
use crate::site::Site;
use decoder::Decoder;
use std::time::Duration;

/// Options of a generation.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Maximum number of new tokens per row.
    pub max_new: usize,
    /// Sampling settings.
    pub sampling: Sampling,
    /// End-of-sequence tokens: each ends its row.
    pub eos: Vec<u32>,
    /// Chunked prefill: prompt tokens of a row per pass; the whole prompt if `None`.
    pub chunk: Option<usize>,
    /// Prompt lookup: maximum number of speculative tokens per pass, copied from earlier in the
    /// row; 0 turns it off. The output never changes. Off for plans that touch generated positions
    /// and for models with recurrent state.
    pub lookup: usize,
    /// Maximum number of threads; all threads of the model if `None`. The output never changes.
    pub threads: Option<usize>,
    /// Prefix cache: reuses KV caches of earlier calls up to the first position that the plan
    /// touches. The output never changes.
    pub prefixes: Option<PrefixCache>,
    /// Polled during the generation; ends it with an error.
    pub interrupt: Option<Interrupt>,
    /// How captures are stored.
    pub captures: CaptureOptions,
    /// Log-probabilities to record.
    pub logprobs: LogprobOptions,
    /// The adapter of each row.
    pub adapters: RowAdapters,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_new: 64,
            sampling: Sampling::default(),
            eos: Vec::new(),
            chunk: None,
            lookup: 0,
            threads: None,
            prefixes: None,
            interrupt: None,
            captures: CaptureOptions::default(),
            logprobs: LogprobOptions::default(),
            adapters: RowAdapters::default(),
        }
    }
}

/// Returned by the per-token callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue this row.
    Go,
    /// End this row.
    Stop,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token (`GenerateOptions::eos`).
    Eos,
    /// `max_new` tokens were generated.
    Length,
    /// The per-token callback returned [`Control::Stop`] (a stop string, for example).
    Stop,
    /// A condition of the plan held ([`Action::Stop`](crate::Action::Stop)).
    Condition,
}

/// A generated row.
#[derive(Clone, Debug)]
pub struct GeneratedRow {
    /// The new tokens, including the end-of-sequence token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Its log-probabilities, as far as [`GenerateOptions::logprobs`] asks for them.
    pub logprobs: RowLogprobs,
    /// Statistics of prompt lookup.
    pub lookup: LookupStats,
    /// A token was chosen although no logit was finite;
    /// [`Model::find_non_finite_generating`] finds where that began.
    pub non_finite: bool,
}

/// The result of a generation.
#[derive(Debug)]
pub struct Generation {
    /// One per input.
    pub rows: Vec<GeneratedRow>,
    /// The plan's captures; a row has `prompt + generated - 1` positions.
    pub captures: Vec<Capture>,
    /// The values that the plan saves, step by step.
    pub saved: Vec<SavedValue>,
    /// Positions at which the plan's marks held, ordered by tap, row and position.
    pub marks: Vec<Mark>,
    /// Sites that a pattern of the plan skipped because their layers do not have them.
    pub passed_over: Vec<Site>,
    /// For each row the number of tokens reused from the prefix cache.
    pub reused: Vec<usize>,
    /// Duration of prefill.
    pub prefill: Duration,
    /// Duration of decoding.
    pub decode: Duration,
    /// Transfers between host and device; in a [`Batch`] those of the captures only.
    pub moved: TransferStats,
}

impl Model {
    /// Continues rows of tokens under a plan. `watch` is called with the row and each new token.
    pub fn generate(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) -> Result<Generation> {
        let model = self.on_threads(options.threads)?;
        let mut executor = Executor::new(&model, InterruptPoller::new(options.interrupt.as_ref()));
        let mut decoder = Decoder::new(&model, inputs, plan, options)?;
        while !decoder.is_done() {
            run_pass(&model, &mut executor, &mut decoder, watch)?;
        }
        let mut generation = decoder.finish(&model)?;
        generation.moved += executor.moved;
        Ok(generation)
    }

    /// Makes the checks of [`generate`](Self::generate) that need no weights.
    pub fn check_generate(&self, inputs: &[Vec<u32>], plan: &Plan, options: &GenerateOptions) -> Result<()> {
        check(self, inputs, plan, options).map(drop)
    }

    /// Generates again to find the first activation that is NaN or infinite, for a generation whose
    /// logits or captures are; ends as soon as it is found.
    pub fn find_non_finite_generating(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
    ) -> Result<Option<NonFinite>> {
        let model = self.on_threads(options.threads)?;
        // Every position is computed, and edits may write NaN.
        let plan = Plan { allow_nan: true, ..plan.clone() };
        let options = GenerateOptions { prefixes: None, ..options.clone() };
        let mut executor = Executor::new(&model, InterruptPoller::new(options.interrupt.as_ref())).scanning();
        let mut decoder = Decoder::new(&model, inputs, &plan, &options)?;
        while !decoder.is_done() && executor.non_finite().is_none() {
            run_pass(&model, &mut executor, &mut decoder, &mut |_, _| Control::Go)?;
        }
        Ok(executor.non_finite().cloned())
    }
}

/// Runs one pass of a generation: prompt tokens, or the next token of each row.
fn run_pass(
    model: &Model,
    executor: &mut Executor,
    decoder: &mut Decoder,
    watch: &mut dyn FnMut(usize, u32) -> Control,
) -> Result<()> {
    let prompts = decoder.in_prompts();
    decoder.plan_pass(usize::MAX);
    let (job, parts) = decoder.parts(0);
    let mut logits = executor.pass(&mut [job], parts, true, None)?;
    decoder.receive(model, executor.last_pass(), 0, &mut logits, watch)?;
    executor.give_back(logits);
    if prompts && !decoder.in_prompts() {
        // Prefill buffers are far larger than decoding needs.
        executor.free_buffers();
    }
    Ok(())
}
