//! Generation: prefill, then one token at a time, with the plan active at every step.
//!
//! A `Decoder` (`decoder.rs`) is a job with the tokens of its rows (`row.rs`): it says which tokens go through next and chooses new
//! ones from the logits. [`Model::generate`] runs one decoder to its end; a [`Batch`] (`batch.rs`) runs any number of them in the same
//! passes, and admits and ends them between passes.

mod batch;
mod decoder;
mod row;

pub use batch::{Batch, RequestId};

use crate::error::Result;
use crate::exec::Executor;
use crate::interrupt::{Interrupt, Watch};
use crate::job::Saved;
use crate::lookup::Lookup;
use crate::memory::Moved;
use crate::model::Model;
use crate::plan::{Capture, Plan};
use crate::prefix::PrefixCache;
use crate::sample::Sampling;
use crate::site::Site;
use decoder::Decoder;
use std::time::Duration;

/// How to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// At most this many new tokens a row.
    pub max_new: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a row.
    pub eos: Vec<u32>,
    /// Prompt tokens of a row that go through at once.
    pub chunk: Option<usize>,
    /// At most this many tokens are drafted from what the row has said before, and checked in one pass; 0 drafts none. It never
    /// changes a token. Plans that touch what is generated, and models that carry a state from token to token, run without.
    pub lookup: usize,
    /// At most this many of the model's threads; all of them where absent. It never changes a token.
    pub threads: Option<usize>,
    /// Kept beginnings of rows, which need not be computed again where the plan touches nothing of them. It never changes a token.
    pub prefixes: Option<PrefixCache>,
    /// Asked now and then whether to stop.
    pub interrupt: Option<Interrupt>,
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
        }
    }
}

/// What the one who watches a generation says to each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Go,
    /// This row is done.
    Stop,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-text token.
    Eos,
    /// As many new tokens as were asked for.
    Length,
    /// The watcher said so (a stop string).
    Stop,
}

/// A generated row.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The new tokens, the end-of-text token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// What drafting came to.
    pub lookup: Lookup,
}

/// What a generation gave back.
#[derive(Debug)]
pub struct Generation {
    /// One for each input.
    pub rows: Vec<Generated>,
    /// What the plan captured: `prompt + generated - 1` positions of each row.
    pub captures: Vec<Capture>,
    /// The values that the plan saves, step by step.
    pub saved: Vec<Saved>,
    /// Sites that patterns passed over.
    pub passed_over: Vec<Site>,
    /// For each row how many of its tokens were taken over from kept prefixes.
    pub reused: Vec<usize>,
    /// Time in the prompts.
    pub prefill: Duration,
    /// Time in the steps after them.
    pub decode: Duration,
    /// What moved between host and device; not counted in a [`Batch`].
    pub moved: Moved,
}

impl Model {
    /// Continues rows of tokens under a plan. `watch` sees each new token of each row as it comes.
    pub fn generate(
        &self,
        inputs: &[Vec<u32>],
        plan: &Plan,
        options: &GenerateOptions,
        watch: &mut dyn FnMut(usize, u32) -> Control,
    ) -> Result<Generation> {
        let model = self.on_threads(options.threads)?;
        let mut executor = Executor::new(&model, Watch::new(options.interrupt.as_ref()));
        let mut decoder = Decoder::new(&model, inputs, plan, options)?;
        while !decoder.is_done() {
            let prompts = decoder.in_prompts();
            decoder.plan_pass(usize::MAX);
            let (job, parts) = decoder.parts(0);
            let mut logits = executor.pass(&mut [job], parts, true, None)?;
            decoder.receive(&model, executor.last_pass(), 0, &mut logits, watch)?;
            executor.give_back(logits);
            if prompts && !decoder.in_prompts() {
                // Buffers for whole prompts are far larger than a step needs.
                executor.free_buffers();
            }
        }
        let generation = decoder.finish(&model)?;
        Ok(Generation { moved: executor.moved, ..generation })
    }
}
