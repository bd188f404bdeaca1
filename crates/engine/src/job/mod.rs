//! Jobs: rows that share a compiled plan.
//!
//! A [`Job`] holds everything that belongs to its rows alone: the plan compiled for them, their KV
//! caches and recurrent states (`row.rs`), the captures and values collected so far (`collect.rs`,
//! `capture_buffer.rs`, `sparse_buffer.rs`), and the tokens for which the last MLP and the logits
//! are computed. The executor packs tokens of any number of jobs into a [`Pass`] (`pass.rs`); only
//! its own job's taps apply to a row.

mod capture_buffer;
mod capture_options;
mod collect;
mod pass;
mod row;
mod sparse_buffer;

pub(crate) use capture_buffer::{AttentionLine, LiveCapture, spilled_bytes};
pub use capture_options::CaptureOptions;
pub use collect::SavedValue;
pub(crate) use collect::{Collector, SharedStore};
pub use pass::{Pass, Segment};
pub(crate) use row::KvPrefix;
pub use row::RowState;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::plan::{CompiledPlan, CompiledTap, ValueId};
use crate::program::{EdgeId, Program, TokenSet};
use crate::value::OpRunner;
use pellucid_kernels::attention::KvFormat;
use std::sync::Arc;

/// Lifetime of the KV cache of a job's rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUse {
    /// Each layer's cache is freed right after its attention.
    Discard,
    /// It outlives the job (prefix cache, branches).
    Keep,
    /// Decoding continues from it.
    Decode,
}

/// Tokens whose logits or last MLP are computed in addition to those that the plan's taps read.
#[derive(Clone, Default)]
pub(crate) struct TokenDemand {
    /// Logits of the last position of each prompt and of every later one.
    pub logits_at_ends: bool,
    /// Logits of every position.
    pub logits_everywhere: bool,
    /// Logits of these `(row, position)`, sorted.
    pub logits_at: Vec<(usize, usize)>,
    /// The last MLP's output at these `(row, position)`, sorted.
    pub last_mlp_at: Vec<(usize, usize)>,
    /// The last MLP runs for every token.
    pub last_mlp_everywhere: bool,
}

/// How a job runs.
pub(crate) struct JobOptions {
    /// Storage format of its KV caches.
    pub format: KvFormat,
    /// Most tokens of a row in one pass.
    pub chunk: Option<usize>,
    pub cache: CacheUse,
    /// Its passes may contain tokens of other jobs, so that captures copy their tokens instead of
    /// taking whole buffers.
    pub shared: bool,
    pub captures: CaptureOptions,
    /// For each row the index of its adapter among those of the model; empty if no row has one.
    pub adapters: Vec<Option<usize>>,
}

impl JobOptions {
    /// A job with passes of its own, whole prompts, captures on the heap, and no adapters.
    pub fn new(format: KvFormat, cache: CacheUse) -> JobOptions {
        let (captures, adapters) = (CaptureOptions::default(), Vec::new());
        JobOptions { format, chunk: None, cache, shared: false, captures, adapters }
    }
}

/// Rows that share a compiled plan, with everything they have computed and collected.
pub(crate) struct Job {
    pub compiled: Arc<CompiledPlan>,
    pub rows: Vec<RowState>,
    pub collector: Collector,
    pub demand: TokenDemand,
    /// For each row the index of its adapter among those of the model; empty if no row has one.
    adapters: Vec<Option<usize>>,
    /// Maximum number of tokens of a row in one pass.
    chunk: usize,
    /// Ops are being recomputed: edits apply again, and nothing is captured twice.
    pub replay: bool,
    /// Taps before this one have already been applied to the current values.
    pub first_tap: usize,
    /// A tap failed in a pass that other jobs share. Later taps of this job are ignored; the caller
    /// ends the job.
    pub failure: Option<Error>,
}

impl Job {
    /// Creates a job with the rows that the plan was compiled for.
    pub fn new(program: &Program, compiled: Arc<CompiledPlan>, options: JobOptions) -> Result<Job> {
        let JobOptions { format, chunk, cache, shared, captures, adapters } = options;
        let chunk = chunk.filter(|_| may_split(&compiled)).unwrap_or(usize::MAX).max(1);
        let one_chunk = compiled.prompts.iter().all(|&prompt| prompt <= chunk);
        let keeps_kv = cache != CacheUse::Discard || !one_chunk;
        let row = |&prompt: &usize| RowState { keeps_kv, ..RowState::new(prompt, format) };
        let rows = compiled.prompts.iter().map(row).collect();
        let single_pass = cache != CacheUse::Decode && one_chunk && !shared;
        let collector = Collector::new(program, &compiled, single_pass, &captures)?;
        // A plain run computes the last MLP for every token, so that its cost does not depend on
        // the captures.
        let last_mlp_everywhere = cache != CacheUse::Decode;
        let demand = TokenDemand { last_mlp_everywhere, ..TokenDemand::default() };
        Ok(Job { compiled, rows, collector, demand, adapters, chunk, replay: false, first_tap: 0, failure: None })
    }

    /// A job without taps, for ops that run on given vectors. `observed` is computed even if it is
    /// an inner edge of an op, which otherwise only taps make it compute.
    pub fn observing(program: &Program, observed: EdgeId) -> Result<Job> {
        let options = JobOptions { shared: true, ..JobOptions::new(KvFormat::default(), CacheUse::Discard) };
        Job::new(program, Arc::new(CompiledPlan::observing(program, observed)), options)
    }

    /// Index of a row's adapter among those of the model.
    pub fn adapter(&self, row: usize) -> Option<usize> {
        self.adapters.get(row).copied().flatten()
    }

    /// Maximum number of tokens of a row in one pass.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether its prompts may be split over several passes.
    pub fn may_split(&self) -> bool {
        may_split(&self.compiled)
    }

    /// Whether its rows run op `index`: the plan needs the op and does not skip its layer.
    pub fn runs(&self, program: &Program, index: usize) -> bool {
        let skipped = program.ops()[index].layer.is_some_and(|layer| self.compiled.skipped[layer]);
        index < self.compiled.ops && !skipped
    }

    /// Whether the logits of a position are computed.
    pub fn needs_logits(&self, program: &Program, row: usize, position: usize) -> bool {
        self.demand.logits_everywhere
            || self.demand.logits_at_ends && position + 1 >= self.compiled.prompts[row]
            || self.demand.logits_at.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(program, TokenSet::ForLogits, row, position)
    }

    /// Whether the last MLP runs for a position whose logits are not needed.
    pub fn needs_last_mlp(&self, program: &Program, row: usize, position: usize) -> bool {
        self.demand.last_mlp_everywhere
            || self.demand.last_mlp_at.binary_search(&(row, position)).is_ok()
            || self.compiled.reads(program, TokenSet::ForLastMlp, row, position)
    }

    /// Whether any tap reads or changes an edge.
    pub fn touches(&self, edge: EdgeId) -> bool {
        !self.compiled.backward_at_edge[edge].is_empty() || !self.compiled.sources_at[edge].is_empty()
    }

    /// Whether a tap reads or changes an edge in a row.
    pub fn touches_row(&self, edge: EdgeId, row: usize) -> bool {
        let compiled = &self.compiled;
        compiled.backward_at_edge[edge].iter().any(|&i| compiled.taps[i].rows[row].is_some())
            || compiled.sources_at[edge].iter().any(|&i| compiled.sources[i].rows[row].is_some())
    }

    /// Whether a tap changes an edge in a row.
    pub fn edits_row(&self, edge: EdgeId, row: usize) -> bool {
        let edits = |entry: &CompiledTap| !entry.is_read_only() && entry.rows[row].is_some();
        self.compiled.at_edge[edge].iter().any(|&i| edits(&self.compiled.taps[i]))
    }

    /// Whether a tap is not to be applied now: it was applied before, or the job has failed.
    pub fn ignores(&self, entry: &CompiledTap) -> bool {
        self.failure.is_some() || entry.tap < self.first_tap || self.replay && entry.is_read_only()
    }

    /// Binds an array that a tap has read from a row to the plan values that read it.
    pub fn bind(&mut self, entry: &CompiledTap, row: usize, array: Array) {
        self.collector.bind(&self.compiled, entry, row, array);
    }

    /// Computes a value of the plan for the row that uses it.
    pub fn value(&mut self, ops: &dyn OpRunner, value: ValueId, reader: Option<usize>) -> Result<Array> {
        self.collector.value(ops, &self.compiled, value, reader)
    }

    /// Stores the saved values of the current step. Rows in `ended` take no part in the next one.
    pub fn end_step(&mut self, ops: &dyn OpRunner, ended: &[usize]) -> Result<()> {
        self.collector.end_step(ops, &self.compiled, ended)
    }
}

/// Whether prompts may be split over several passes. A source or value may read any position, so
/// plans that have them run prompts whole.
fn may_split(compiled: &CompiledPlan) -> bool {
    compiled.sources.is_empty() && compiled.values.list.is_empty()
}
