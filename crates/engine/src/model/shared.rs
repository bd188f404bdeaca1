//! Models that share their weights.

use super::Model;
use super::adapters::AttachedAdapters;
use super::attach::AttachedSaes;
use crate::backend::Backend;
use crate::program::Program;
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::sync::{Arc, Weak};

/// A weak handle of a model, which does not keep its weights alive.
pub struct WeakModel {
    program: Weak<Program>,
    weights: Weak<Weights>,
    saes: Arc<AttachedSaes>,
    adapters: Arc<AttachedAdapters>,
    backend: Arc<dyn Backend>,
}

impl WeakModel {
    /// Returns a model with the same program and weights; `None` if they have been dropped. The
    /// model has the global thread pool, an f32 KV cache and its own cache of compiled plans.
    pub fn upgrade(&self) -> Option<Model> {
        Some(Model {
            program: self.program.upgrade()?,
            weights: self.weights.upgrade()?,
            backend: self.backend.clone(),
            pool: Pool::global(),
            kv: KvFormat::default(),
            plans: Arc::default(),
            saes: self.saes.clone(),
            adapters: self.adapters.clone(),
        })
    }

    /// Whether the weights are still in memory.
    pub fn is_alive(&self) -> bool {
        self.weights.strong_count() > 0
    }
}

impl Model {
    /// Returns a weak handle, from which other models can be created while the weights are alive.
    pub fn downgrade(&self) -> WeakModel {
        WeakModel {
            program: Arc::downgrade(&self.program),
            weights: Arc::downgrade(&self.weights),
            saes: self.saes.clone(),
            adapters: self.adapters.clone(),
            backend: self.backend.clone(),
        }
    }

    /// Whether two models share the same weights in memory.
    pub fn shares_weights_with(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.weights, &other.weights)
    }
}
