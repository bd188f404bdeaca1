//! Cache of compiled plans, keyed by content: a plan that runs again on rows of the same lengths is
//! not compiled again.

use super::{Action, CompiledPlan, Expr, Lengths, Plan, compile};
use crate::error::Result;
use crate::program::Program;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Compiled plans cached per model.
const MAX_CACHED_PLANS: usize = 32;

/// LRU cache of a model's compiled plans, most recently used first.
#[derive(Default)]
pub(crate) struct PlanCache {
    plans: Mutex<Vec<Arc<CachedPlan>>>,
    off: AtomicBool,
}

struct CachedPlan {
    plan: Plan,
    prompts: Vec<usize>,
    limits: Vec<usize>,
    logits: bool,
    compiled: Arc<CompiledPlan>,
}

impl PlanCache {
    /// Returns the compiled plan from the cache, or compiles and caches it.
    pub fn compile(&self, program: &Program, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Arc<CompiledPlan>> {
        let same = |cached: &Arc<CachedPlan>| {
            cached.logits == logits
                && cached.prompts == lengths.prompts
                && cached.limits == lengths.limits
                && cached.plan == *plan
        };
        let lock = || self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        {
            let mut plans = lock();
            if let Some(found) = plans.iter().position(same) {
                plans[..=found].rotate_right(1);
                return Ok(plans[0].compiled.clone());
            }
        }
        let compiled = Arc::new(compile(program, plan, lengths, logits)?);
        if !has_closures(plan) && !self.off.load(Relaxed) {
            let (prompts, limits) = (lengths.prompts.to_vec(), lengths.limits.to_vec());
            let new = CachedPlan { plan: plan.clone(), prompts, limits, logits, compiled: compiled.clone() };
            let mut plans = lock();
            plans.insert(0, Arc::new(new));
            plans.truncate(MAX_CACHED_PLANS);
        }
        Ok(compiled)
    }

    /// Turns the cache on, or turns it off and clears it.
    pub fn set_enabled(&self, on: bool) {
        self.off.store(!on, Relaxed);
        if !on {
            self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
        }
    }

    /// Returns the number of cached plans.
    pub fn len(&self) -> usize {
        self.plans.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }
}

/// Closures compare by pointer and are created per plan, so a plan with closures would never be
/// found again.
fn has_closures(plan: &Plan) -> bool {
    plan.taps.iter().any(|tap| matches!(tap.action, Action::Call(_)))
        || plan.values.iter().any(|value| matches!(value.expr, Expr::Call { .. }))
}
