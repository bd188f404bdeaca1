//! Jobs: rows that share a compiled plan.
//!
//! A [`Job`] holds everything that belongs to its rows alone: the plan compiled for them, their KV caches and recurrent states
//! (`row.rs`), the captures and values collected so far (`collect.rs`), and which tokens the end of the model is computed for. The
//! executor packs tokens of any number of jobs into a [`Pass`] (`pass.rs`); a row meets only the taps of its own job.

mod collect;
mod pass;
mod row;

pub use collect::Saved;
pub(crate) use collect::{AttentionLine, Collector, SharedStore};
pub use pass::{Pass, Segment};
pub(crate) use row::Beginning;
pub use row::RowState;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{Compiled, Entry, ValueId};
use crate::program::{Domain, EdgeId, Program};
use crate::value::OpRunner;
use pellucid_kernels::attention::KvFormat;
use std::sync::Arc;

/// What becomes of the KV cache of a job's rows after their prompts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// Nothing reads it any more: each layer's cache is freed right after its attention.
    Discard,
    /// It is kept when the job has ended (prefix cache, branches).
    Keep,
    /// Decoding goes on from it.
    Decode,
}

/// Tokens that the end of the model is computed for beyond those that the plan's taps read.
#[derive(Clone, Default)]
pub(crate) struct TokenDemand {
    /// Logits of the last position of each prompt and of every later one.
    pub logits_at_ends: bool,
    /// Logits of these `(row, position)`, sorted.
    pub logits_at: Vec<(usize, usize)>,
    /// The last MLP's output at these `(row, position)`, sorted.
    pub last_mlp_at: Vec<(usize, usize)>,
    /// The last MLP runs for every token.
    pub last_mlp_everywhere: bool,
}

/// Rows that share a compiled plan, with everything they have computed and collected.
pub(crate) struct Job {
    pub compiled: Arc<Compiled>,
    pub rows: Vec<RowState>,
    pub collector: Collector,
    pub demand: TokenDemand,
    /// Most tokens of a row in one pass.
    chunk: usize,
    /// The ops have run before: edits apply again, and nothing is collected twice.
    pub replay: bool,
    /// Taps before this one have had their effect on the values that are shown now.
    pub first_tap: usize,
    /// A tap failed in a pass that other jobs share. Later taps of this job are ignored; the caller ends the job.
    pub failure: Option<Error>,
}

impl Job {
    /// A job of rows of the prompt lengths that the plan was compiled for. `shared` says that its passes may hold tokens of other
    /// jobs, so that captures copy their tokens instead of taking whole buffers.
    pub fn new(compiled: Arc<Compiled>, format: KvFormat, chunk: Option<usize>, cache: CacheUse, shared: bool) -> Job {
        let chunk = chunk.filter(|_| may_split(&compiled)).unwrap_or(usize::MAX).max(1);
        let one_chunk = compiled.prompts.iter().all(|&prompt| prompt <= chunk);
        let keeps_kv = cache != CacheUse::Discard || !one_chunk;
        let row = |&prompt: &usize| RowState { keeps_kv, ..RowState::new(prompt, format) };
        let rows = compiled.prompts.iter().map(row).collect();
        let single_pass = cache != CacheUse::Decode && one_chunk && !shared;
        let collector = Collector::new(&compiled, single_pass);
        // A plain run computes the last MLP for every token, so that its cost does not depend on what is captured.
        let last_mlp_everywhere = cache != CacheUse::Decode;
        let demand = TokenDemand { last_mlp_everywhere, ..TokenDemand::default() };
        Job { compiled, rows, collector, demand, chunk, replay: false, first_tap: 0, failure: None }
    }

    /// A job without taps, for ops that run on given vectors.
    pub fn without_plan(compiled: Arc<Compiled>) -> Job {
        Job::new(compiled, KvFormat::default(), None, CacheUse::Discard, true)
    }

    /// Most tokens of a row in one pass.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether its prompts may be split over several passes.
    pub fn may_split(&self) -> bool {
        may_split(&self.compiled)
    }

    /// Whether its rows take part in op `index`: the plan needs the op and does not skip its layer.
    pub fn runs(&self, program: &Program, index: usize) -> bool {
        let skipped = program.ops()[index].layer.is_some_and(|layer| self.compiled.skipped[layer]);
        index < self.compiled.ops && !skipped
    }

    /// Whether the logits of a position are computed.
    pub fn needs_logits(&self, program: &Program, row: usize, position: usize) -> bool {
        self.demand.logits_at_ends && position + 1 >= self.compiled.prompts[row]
            || self.demand.logits_at.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(program, Domain::Read, row, position)
    }

    /// Whether the last MLP runs for a position although its logits are not computed.
    pub fn needs_last_mlp(&self, program: &Program, row: usize, position: usize) -> bool {
        self.demand.last_mlp_everywhere
            || self.demand.last_mlp_at.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(program, Domain::Late, row, position)
    }

    /// Whether any tap reads or changes an edge.
    pub fn touches(&self, edge: EdgeId) -> bool {
        !self.compiled.back_at_edge[edge].is_empty() || !self.compiled.sources_at[edge].is_empty()
    }

    /// Whether a tap reads or changes an edge in a row.
    pub fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        let compiled = &self.compiled;
        compiled.back_at_edge[edge].iter().any(|&i| compiled.entries[i].rows[row].is_some())
            || compiled.sources_at[edge].iter().any(|&i| compiled.sources[i].rows[row].is_some())
    }

    /// Whether a tap changes an edge in a row.
    pub fn edits_row(&self, edge: EdgeId, row: usize) -> bool {
        let edits = |entry: &Entry| !entry.looks() && entry.rows[row].is_some();
        self.compiled.at_edge[edge].iter().any(|&i| edits(&self.compiled.entries[i]))
    }

    /// Whether an entry of the plan has done its work already.
    pub fn ignores(&self, entry: &Entry) -> bool {
        self.failure.is_some() || entry.tap < self.first_tap || self.replay && entry.looks()
    }

    /// Binds what a tap has read of a row to the values that it reads for.
    pub fn bind(&mut self, entry: &Entry, row: usize, array: Array) {
        self.collector.bind(&self.compiled, entry, row, array);
    }

    /// A value of the plan, for the row that reads it.
    pub fn value(&mut self, ops: &dyn OpRunner, value: ValueId, reader: Option<usize>) -> Result<Array> {
        self.collector.value(ops, &self.compiled, value, reader)
    }

    /// Keeps the saved values of the step under way. Another step may follow, without the rows that have ended.
    pub fn end_step(&mut self, ops: &dyn OpRunner, ended: &[usize]) -> Result<()> {
        self.collector.end_step(ops, &self.compiled, ended)
    }
}

/// Whether prompts may be split over several passes. A source or value may read any position, so plans with them take prompts whole.
fn may_split(compiled: &Compiled) -> bool {
    compiled.sources.is_empty() && compiled.values.list.is_empty()
}
