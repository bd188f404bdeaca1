//! A model: a program with its weights, a backend and threads.

mod shared;
mod unembed;
mod weight_of;

pub use shared::WeakModel;

use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::error::{Error, Result};
use crate::plan::{Compiled, Lengths, Plan, PlanCache};
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
}

impl Model {
    /// A model that runs on the CPU with the shared threads.
    pub fn new(program: Program, weights: Weights) -> Model {
        let weights = weights.with_folded_gains(&program);
        Model {
            program: Arc::new(program),
            weights: Arc::new(weights),
            backend: Arc::new(Cpu),
            pool: Pool::global(),
            plans: Arc::default(),
            kv: KvFormat::default(),
        }
    }

    /// Keeps compiled plans from now on, as is the case unless turned off, or lets go of them; for all clones of this model. It never
    /// changes a result.
    pub fn keep_plans(&self, on: bool) {
        self.plans.keep(on);
    }

    /// How many compiled plans are kept.
    pub fn cached_plans(&self) -> usize {
        self.plans.len()
    }

    /// Checks a plan against the program and rows of these lengths, or finds it checked.
    pub(crate) fn compile(&self, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Arc<Compiled>> {
        self.plans.compile(&self.program, plan, lengths, logits)
    }

    /// The same model on other threads.
    pub fn with_pool(mut self, pool: Arc<Pool>) -> Model {
        self.pool = pool;
        self
    }

    /// The same model with keys and values kept otherwise between tokens. What is rounded there changes numbers.
    pub fn with_kv(mut self, format: KvFormat) -> Model {
        self.kv = format;
        self
    }

    /// How keys and values are kept.
    pub fn kv(&self) -> KvFormat {
        self.kv
    }

    /// The same model on at most so many of its threads.
    pub(crate) fn on_threads(&self, threads: Option<usize>) -> Result<Cow<'_, Model>> {
        match threads {
            Some(0) => Err(Error::input("threads is 0", "take at least one thread, or leave threads out")),
            Some(threads) => Ok(Cow::Owned(self.clone().with_pool(Arc::new(self.pool.at_most(threads))))),
            None => Ok(Cow::Borrowed(self)),
        }
    }

    /// What executes its ops.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The same model with its ops executed by another backend.
    pub fn with_backend(&self, backend: Arc<dyn Backend>) -> Model {
        Model { backend, ..self.clone() }
    }

    /// Its program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its threads.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn shared_weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// Its weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The sites that a text means on this model.
    pub fn find(&self, text: &str) -> Result<site::Matches> {
        site::find(&self.program, text)
    }

    /// Refuses inputs that cannot run, before anything runs.
    pub(crate) fn check_inputs(&self, inputs: &[Vec<u32>], more: usize, chunk: Option<usize>) -> Result<()> {
        // Positions of a model that sets no limit itself: more than any text, less than what would overflow.
        const MOST: usize = 1 << 20;
        let architecture = self.program.architecture();
        if chunk == Some(0) {
            return Err(Error::input("the chunk is 0", "take at least one token at once, or leave the chunk out"));
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
                    format!("row {row} has token {token}, and the vocabulary has {} tokens", architecture.vocab),
                    "use tokens of this model's own tokenizer",
                ));
            }
            let length = tokens.len().saturating_add(more);
            let context = architecture.context.unwrap_or(MOST);
            if length > context {
                return Err(Error::input(
                    format!("row {row} would come to {length} positions, and this model has {context}"),
                    "shorten the prompt or ask for fewer new tokens",
                ));
            }
        }
        Ok(())
    }
}
