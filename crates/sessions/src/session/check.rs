//! Work and cost of a session, before it runs.

use super::Session;
use crate::memory::resident_bytes;
use crate::ops::{OpContext, estimate};
use crate::store::ColumnOrigin;
use crate::store::Store;
use pellucid_models::Result;
use serde::Serialize;

/// Work and cost of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// Name of the session.
    pub name: String,
    /// Name of the model.
    pub model: String,
    /// The autoencoders: site and number of latents.
    pub saes: Vec<(String, usize)>,
    /// The chain of ops.
    pub ops: String,
    /// The columns that will be stored.
    pub columns: Vec<ColumnOrigin>,
    /// Number of examples.
    pub examples: usize,
    /// Number of tokens: all, and of the longest prompt.
    pub tokens: [usize; 2],
    /// Number of parts.
    pub parts: usize,
    /// State of the output: `new`, `up to date`, `other results`, `unfinished`.
    pub output: String,
    /// Estimated peak of the resident memory, in bytes.
    pub memory_bytes: u64,
    /// Estimated time of the forward passes, in seconds; ablations and gradients come on top.
    pub forward_seconds: f64,
}

impl Session {
    /// Describes the session without running it.
    pub fn check(&self) -> Result<CheckReport> {
        let answer = self.config.config.dataset.answer.unwrap_or_default();
        let context = |examples| OpContext {
            model: &self.parts.model,
            hooks: &self.parts.hooks,
            examples,
            answer,
            options: &self.config.config,
            concept: self.concept.as_ref(),
            keeps_bases: false,
            interrupt: None,
        };
        let batches = || self.examples.chunk_by(|a, b| a.batch == b.batch);
        let largest = batches().max_by_key(|batch| batch.iter().map(|example| example.tokens.len()).sum::<usize>());
        let (mut memory_bytes, mut seconds_per_token) = (resident_bytes(), 0.0);
        if let Some(largest) = largest {
            let estimate = estimate(&context(largest), self.chain.needs())?;
            memory_bytes += estimate.bytes;
            let tokens: usize = largest.iter().map(|example| example.tokens.len()).sum();
            seconds_per_token = estimate.seconds / tokens.max(1) as f64;
        }
        let tokens = self.examples.iter().map(|example| example.tokens.len());
        let all: usize = tokens.clone().sum();
        let unread = self.parts.check_unread(&self.config)?;
        let hooks = self.parts.hooks.iter().chain(&unread);
        Ok(CheckReport {
            name: self.config.config.name.clone().unwrap_or_else(|| "session".into()),
            model: self.parts.model.name.clone(),
            saes: hooks.map(|hook| (hook.name(), hook.n_latents)).collect(),
            ops: self.chain.name(),
            columns: self.chain.columns(self.dataset_columns()),
            examples: self.examples.len(),
            tokens: [all, tokens.max().unwrap_or(0)],
            parts: self.part_examples().count(),
            output: self.output_state()?,
            memory_bytes,
            forward_seconds: seconds_per_token * all as f64,
        })
    }

    fn output_state(&self) -> Result<String> {
        let path = &self.output;
        let state = match Store::open(path) {
            Ok(store) if store.manifest().keys().eq(self.part_keys()?.iter().map(String::as_str)) => "up to date",
            Ok(_) => "other results",
            Err(_) if crate::store::is_unfinished(path) => "unfinished",
            Err(_) => "new",
        };
        Ok(format!("{} ({state})", path.display()))
    }
}
