//! Recomputation of ops, for gradient checkpointing.

use super::{Executor, OpSequence};
use crate::backend::{Arena, RetainedValues};
use crate::error::Result;
use crate::job::{Job, RowState};
use crate::program::EdgeId;
use std::ops::Range;

impl Executor {
    /// Recomputes some ops of a job's earlier pass from the values of their `inputs` in `from`.
    /// Edits apply again, but nothing is captured twice. `retained` receives the values that the
    /// backward pass of these ops reads.
    pub fn replay(
        &mut self,
        job: &mut Job,
        ops: Range<usize>,
        from: &RetainedValues,
        inputs: &[EdgeId],
        retained: &mut RetainedValues,
    ) -> Result<()> {
        self.pass.clone_from(from.pass());
        // Gradients run whole prompts, so the rows start empty.
        self.rows.clear();
        for segment in &self.pass.segments {
            self.rows.push(RowState::new(job.compiled.prompts[segment.row], self.model.kv()));
        }
        for &edge in inputs {
            let mut copy = self.arena.take(from.value(edge).len());
            copy.copy_from_slice(from.value(edge));
            self.buffers.put(edge, copy);
        }
        self.buffers.set_features(from.features.clone());
        job.replay = true;
        let outcome = self.run_ops(&mut [job], OpSequence { ops, only: None, keep: None, last: true }, Some(retained));
        job.replay = false;
        self.rows.clear();
        outcome?;
        retained.move_to_host(self.model.backend().memory())
    }

    /// Lends the free buffers to a backward pass.
    pub fn take_arena(&mut self) -> Arena {
        std::mem::take(&mut self.arena)
    }

    /// Takes the free buffers back from a backward pass.
    pub fn put_arena(&mut self, arena: Arena) {
        self.arena = arena;
    }
}
