//! A model: a program with its weights, a backend and a thread pool.

mod adapters;
mod attach;
mod outline;
mod shared;
mod unembed;
mod weight_of;
mod with_weights;

use adapters::AttachedAdapters;
use attach::AttachedSaes;
pub use attach::TranscoderLayer;
pub use shared::WeakModel;

use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::error::{Error, Result};
use crate::plan::{CompiledPlan, Lengths, Plan, PlanCache};
use crate::program::Program;
use crate::site;
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::borrow::Cow;
use std::sync::Arc;

/// A program with its weights, ready to run. Cheap to share between threads.
#[derive(Clone)]
pub struct Model {
    program: Arc<Program>,
    weights: Arc<Weights>,
    backend: Arc<dyn Backend>,
    pool: Arc<Pool>,
    plans: Arc<PlanCache>,
    kv: KvFormat,
    /// The attached autoencoders; ops refer to them by index.
    saes: Arc<AttachedSaes>,
    /// The attached adapters; rows refer to them by index.
    adapters: Arc<AttachedAdapters>,
}

impl Model {
    /// Creates a model on the CPU backend with the global thread pool.
    pub fn new(program: Program, weights: Weights) -> Model {
        let weights = weights.with_folded_gains(&program);
        Model {
            program: Arc::new(program),
            weights: Arc::new(weights),
            backend: Arc::new(Cpu),
            pool: Pool::global(),
            plans: Arc::default(),
            kv: KvFormat::default(),
            saes: Arc::default(),
            adapters: Arc::default(),
        }
    }

    /// Turns the cache of compiled plans on (the default) or off, for all clones of this model.
    /// Results never change.
    pub fn keep_plans(&self, on: bool) {
        self.plans.set_enabled(on);
    }

    /// Number of compiled plans in the cache.
    pub fn cached_plans(&self) -> usize {
        self.plans.len()
    }

    /// Compiles a plan for rows of these lengths, or returns it from the cache.
    pub(crate) fn compile(&self, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Arc<CompiledPlan>> {
        self.plans.compile(&self.program, plan, lengths, logits)
    }

    /// Returns this model with another thread pool.
    pub fn with_pool(mut self, pool: Arc<Pool>) -> Model {
        self.pool = pool;
        self
    }

    /// Returns this model with another element format of the KV cache. A 16-bit or quantized cache
    /// changes results.
    pub fn with_kv(mut self, format: KvFormat) -> Model {
        self.kv = format;
        self
    }

    /// Element format of the KV cache.
    pub fn kv(&self) -> KvFormat {
        self.kv
    }

    /// Returns this model limited to `threads` threads of its pool.
    pub(crate) fn on_threads(&self, threads: Option<usize>) -> Result<Cow<'_, Model>> {
        match threads {
            Some(0) => Err(Error::input("threads is 0", "use at least one thread, or leave threads out")),
            Some(threads) => Ok(Cow::Owned(self.clone().with_pool(Arc::new(self.pool.at_most(threads))))),
            None => Ok(Cow::Borrowed(self)),
        }
    }

    /// The backend.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns this model with another backend.
    pub fn with_backend(&self, backend: Arc<dyn Backend>) -> Model {
        Model { backend, ..self.clone() }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The thread pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn shared_weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Resolves a site name or pattern to sites of this model.
    pub fn find(&self, text: &str) -> Result<site::Matches> {
        site::find(&self.program, text)
    }

    /// Checks inputs before anything runs; `more` is the number of further positions that a
    /// generation may add.
    pub(crate) fn check_inputs(&self, inputs: &[Vec<u32>], more: usize, chunk: Option<usize>) -> Result<()> {
        self.check_weights()?;
        self.check_rows(inputs, more, chunk)
    }

    /// The checks of [`check_inputs`](Self::check_inputs) that need no weights.
    pub(crate) fn check_rows(&self, inputs: &[Vec<u32>], more: usize, chunk: Option<usize>) -> Result<()> {
        // Limit for models without a context length: more than any text, small enough not to
        // overflow.
        const MAX_POSITIONS: usize = 1 << 20;
        let architecture = self.program.architecture();
        if chunk == Some(0) {
            return Err(Error::input("the chunk is 0", "use a chunk of at least one token, or leave it out"));
        }
        if inputs.is_empty() {
            return Err(Error::input("there is no input", "give at least one prompt or list of tokens"));
        }
        for (row, tokens) in inputs.iter().enumerate() {
            if tokens.is_empty() {
                return Err(Error::input(
                    format!("row {row} is empty"),
                    "a row needs at least one token; models with a beginning-of-text token can start from it",
                ));
            }
            if let Some(token) = tokens.iter().find(|&&token| token as usize >= architecture.vocab) {
                return Err(Error::input(
                    format!("row {row} has token {token}, but the vocabulary has {} tokens", architecture.vocab),
                    "use tokens of this model's own tokenizer",
                ));
            }
            let length = tokens.len().saturating_add(more);
            let context = architecture.context.unwrap_or(MAX_POSITIONS);
            if length > context {
                return Err(Error::input(
                    format!("row {row} would have {length} positions, but this model has {context}"),
                    "shorten the prompt or ask for fewer new tokens",
                ));
            }
        }
        Ok(())
    }
}
