//! Ops that run again, for gradient checkpointing.

use super::{Executor, Walk};
use crate::backend::{Arena, KeptValues};
use crate::error::Result;
use crate::job::{Job, RowState};
use crate::program::EdgeId;
use std::ops::Range;

impl Executor {
    /// Runs some ops of a job's earlier pass again, from the values that `from` has kept of their `inputs`. Edits apply again, nothing
    /// is collected twice; `kept` takes what the gradients of these ops need.
    pub fn replay(
        &mut self,
        job: &mut Job,
        ops: Range<usize>,
        from: &KeptValues,
        inputs: &[EdgeId],
        kept: &mut KeptValues,
    ) -> Result<()> {
        self.pass.clone_from(from.pass());
        // Gradients run whole prompts, so the rows begin empty.
        self.rows.clear();
        for segment in &self.pass.segments {
            self.rows.push(RowState::new(job.compiled.prompts[segment.row], self.model.kv()));
        }
        for &edge in inputs {
            let mut copy = self.arena.take(from.value(edge).len());
            copy.copy_from_slice(from.value(edge));
            self.buffers.put(edge, copy);
        }
        job.replay = true;
        let outcome = self.walk(&mut [job], Walk { ops, only: None, keep: None, last: true }, Some(kept));
        job.replay = false;
        self.rows.clear();
        outcome?;
        kept.move_to_host(self.model.backend().memory())
    }

    /// Lends the free buffers to a backward pass.
    pub fn take_arena(&mut self) -> Arena {
        std::mem::take(&mut self.arena)
    }

    /// Takes the free buffers back.
    pub fn put_arena(&mut self, arena: Arena) {
        self.arena = arena;
    }
}
