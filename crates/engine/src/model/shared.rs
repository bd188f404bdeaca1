//! Models that share their weights.

use super::Model;
use crate::backend::Backend;
use crate::program::Program;
use crate::weights::Weights;
use pellucid_kernels::Pool;
use pellucid_kernels::attention::KvFormat;
use std::sync::{Arc, Weak};

/// A model that does not keep its weights alive.
pub struct WeakModel {
    program: Weak<Program>,
    weights: Weak<Weights>,
    backend: Arc<dyn Backend>,
}

impl WeakModel {
    /// Another model of the same program and weights, as long as somebody still has them. It has the shared threads, caches in
    /// f32, and keeps compiled plans of its own.
    pub fn upgrade(&self) -> Option<Model> {
        Some(Model {
            program: self.program.upgrade()?,
            weights: self.weights.upgrade()?,
            backend: self.backend.clone(),
            pool: Pool::global(),
            kv: KvFormat::default(),
            plans: Arc::default(),
        })
    }

    /// Whether somebody still has the weights.
    pub fn is_alive(&self) -> bool {
        self.weights.strong_count() > 0
    }
}

impl Model {
    /// A handle from which other models with the same weights can be had while there is one.
    pub fn downgrade(&self) -> WeakModel {
        WeakModel {
            program: Arc::downgrade(&self.program),
            weights: Arc::downgrade(&self.weights),
            backend: self.backend.clone(),
        }
    }

    /// Whether two models have the same weights in memory.
    pub fn shares_weights_with(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.weights, &other.weights)
    }
}
