//! Compiled plans, kept by content: a plan that runs again on rows of the same lengths is not checked again.

use super::{Action, Compiled, Expr, Lengths, Plan, compile};
use crate::error::Result;
use crate::program::Program;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// How many compiled plans a model keeps.
const KEPT: usize = 32;

/// The compiled plans of a model, the last used first.
#[derive(Default)]
pub(crate) struct PlanCache {
    kept: Mutex<Vec<Arc<Kept>>>,
    off: AtomicBool,
}

struct Kept {
    plan: Plan,
    prompts: Vec<usize>,
    limits: Vec<usize>,
    logits: bool,
    compiled: Arc<Compiled>,
}

impl PlanCache {
    /// The compiled plan: a kept one if there is one of the same content, else a new one, which is kept.
    pub fn compile(&self, program: &Program, plan: &Plan, lengths: Lengths, logits: bool) -> Result<Arc<Compiled>> {
        let same = |kept: &Arc<Kept>| {
            kept.logits == logits
                && kept.prompts == lengths.prompts
                && kept.limits == lengths.limits
                && kept.plan == *plan
        };
        let lock = || self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        {
            let mut kept = lock();
            if let Some(found) = kept.iter().position(same) {
                kept[..=found].rotate_right(1);
                return Ok(kept[0].compiled.clone());
            }
        }
        let compiled = Arc::new(compile(program, plan, lengths, logits)?);
        if !has_closures(plan) && !self.off.load(Relaxed) {
            let (prompts, limits) = (lengths.prompts.to_vec(), lengths.limits.to_vec());
            let new = Kept { plan: plan.clone(), prompts, limits, logits, compiled: compiled.clone() };
            let mut kept = lock();
            kept.insert(0, Arc::new(new));
            kept.truncate(KEPT);
        }
        Ok(compiled)
    }

    /// Keeps plans from now on, or lets go of them.
    pub fn keep(&self, on: bool) {
        self.off.store(!on, Relaxed);
        if !on {
            self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
        }
    }

    /// How many plans are kept.
    pub fn len(&self) -> usize {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len()
    }
}

/// Closures are made anew each time, so a plan with some would never be found again.
fn has_closures(plan: &Plan) -> bool {
    plan.taps.iter().any(|tap| matches!(tap.action, Action::Call(_)))
        || plan.values.iter().any(|value| matches!(value.expr, Expr::Call { .. }))
}
