//! Prefix cache: KV caches and recurrent states of earlier calls, reused by rows that start with
//! the same tokens.
//!
//! A row's KV cache and recurrent states depend, bit for bit, on its own tokens and its adapter
//! only. A call may therefore reuse those of an earlier call with the same adapter for the common
//! prefix, up to the first position that its plan reads or edits: tapped positions must be
//! computed. Unfused attention sums in a different order, so rows with taps on attention scores or
//! probabilities reuse nothing.

use crate::adapter::{AdapterId, RowAdapters};
use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::interrupt::InterruptPoller;
use crate::job::{CacheUse, Job, JobOptions, RowState};
use crate::model::Model;
use crate::plan::{CompiledPlan, CompiledTap, Lengths, Plan, SelectedPositions};
use crate::program::{EdgeId, Layout, OpKind, Program};
use crate::weights::Weights;
use pellucid_kernels::attention::KvFormat;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A prefix cache of one model. Cheap to clone; clones share their contents.
#[derive(Clone)]
pub struct PrefixCache(Arc<CacheInner>);

struct CacheInner {
    /// Maximum size in bytes.
    capacity: usize,
    /// Whether calls add the prefixes that they have computed.
    adds_prefixes: bool,
    table: Mutex<PrefixTable>,
}

#[derive(Default)]
struct PrefixTable {
    /// The weights of the model that the prefixes belong to.
    owner: Weak<Weights>,
    format: KvFormat,
    /// In order of last use, most recent last.
    prefixes: Vec<Arc<Prefix>>,
    counts: PrefixCounts,
}

/// The state of a row after its first tokens.
struct Prefix {
    tokens: Vec<u32>,
    /// The adapter that the row used.
    adapter: Option<AdapterId>,
    state: RowState,
    bytes: usize,
}

/// Size and hit statistics of a prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Number of prefixes in the cache.
    pub prefixes: usize,
    /// Their size in bytes.
    pub bytes: usize,
    /// Rows that reused a prefix.
    pub hits: usize,
    /// Tokens that were reused instead of computed.
    pub tokens: usize,
}

impl PrefixCache {
    /// Creates a cache of at most `capacity` bytes. Calls that use it add the prefixes they
    /// compute; the least recently used ones are evicted.
    pub fn new(capacity: usize) -> PrefixCache {
        PrefixCache(Arc::new(CacheInner { capacity, adds_prefixes: true, table: Mutex::default() }))
    }

    /// Returns size and hit statistics.
    pub fn counts(&self) -> PrefixCounts {
        let table = self.table();
        let bytes = table.prefixes.iter().map(|prefix| prefix.bytes).sum();
        PrefixCounts { prefixes: table.prefixes.len(), bytes, ..table.counts }
    }

    /// Drops all prefixes.
    pub fn clear(&self) {
        self.table().prefixes.clear();
    }

    fn table(&self) -> MutexGuard<'_, PrefixTable> {
        self.0.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Finds the longest cached prefix of a row, at most `limit` tokens: the prefix, and how many
    /// of its tokens match.
    fn find(
        &self,
        program: &Program,
        adapter: Option<AdapterId>,
        tokens: &[u32],
        limit: usize,
    ) -> Option<(Arc<Prefix>, usize)> {
        let mut table = self.table();
        let usable = |prefix: &Prefix| {
            if prefix.adapter != adapter {
                return 0;
            }
            let common = prefix.tokens.iter().zip(&tokens[..limit]).take_while(|(a, b)| a == b).count();
            // A recurrent state exists only for the last token of the prefix.
            if program.is_recurrent() && common < prefix.tokens.len() { 0 } else { common }
        };
        let (index, count) =
            table.prefixes.iter().map(|prefix| usable(prefix)).enumerate().max_by_key(|&(_, count)| count)?;
        if count == 0 {
            return None;
        }
        let prefix = table.prefixes.remove(index);
        table.prefixes.push(prefix.clone());
        table.counts.hits += 1;
        table.counts.tokens += count;
        Some((prefix, count))
    }

    /// Whether calls add the prefixes that they have computed.
    pub(crate) fn adds_prefixes(&self) -> bool {
        self.0.adds_prefixes
    }

    fn add(&self, program: &Program, prefix: Prefix) {
        let mut table = self.table();
        let covers = |long: &Prefix, short: &Prefix| {
            long.adapter == short.adapter
                && long.tokens.starts_with(&short.tokens)
                && (!program.is_recurrent() || long.tokens.len() == short.tokens.len())
        };
        if prefix.bytes > self.0.capacity || table.prefixes.iter().any(|known| covers(known, &prefix)) {
            return;
        }
        table.prefixes.retain(|known| !covers(&prefix, known));
        let mut bytes = prefix.bytes + table.prefixes.iter().map(|known| known.bytes).sum::<usize>();
        table.prefixes.push(Arc::new(prefix));
        while bytes > self.0.capacity {
            bytes -= table.prefixes.remove(0).bytes;
        }
    }

    /// Returns an error if the cache holds prefixes of another model.
    fn check_owner(&self, model: &Model) -> Result<()> {
        let mut table = self.table();
        let owner = table.owner.upgrade();
        let same = owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, model.shared_weights()));
        if same && table.format == model.kv() {
            return Ok(());
        }
        if owner.is_some() && !table.prefixes.is_empty() {
            return Err(Error::input("these prefixes belong to another model", "use one cache per model"));
        }
        table.prefixes.clear();
        (table.owner, table.format) = (Arc::downgrade(model.shared_weights()), model.kv());
        Ok(())
    }
}

impl std::fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PrefixCache").field(&self.counts()).finish()
    }
}

impl Model {
    /// Computes a prefix for later calls: returns a cache that holds only these tokens, to which
    /// calls add nothing.
    pub fn prefix(&self, tokens: &[u32]) -> Result<PrefixCache> {
        let cache =
            PrefixCache(Arc::new(CacheInner { capacity: usize::MAX, adds_prefixes: false, table: Mutex::default() }));
        self.keep_prefix(&cache, tokens)?;
        Ok(cache)
    }

    /// Computes a prefix and adds it to a cache.
    pub fn keep_prefix(&self, cache: &PrefixCache, tokens: &[u32]) -> Result<()> {
        let inputs = [tokens.to_vec()];
        self.check_inputs(&inputs, 0, None)?;
        cache.check_owner(self)?;
        let prompts = [tokens.len()];
        let compiled = self.compile(&Plan::default(), Lengths { prompts: &prompts, limits: &prompts }, true)?;
        let adapters = self.row_adapters(&RowAdapters::ModelDefault, 1)?;
        let options = JobOptions { adapters, ..JobOptions::new(self.kv(), CacheUse::Keep) };
        let mut job = Job::new(self.program(), compiled, options)?;
        Executor::new(self, InterruptPoller::new(None)).prefill(&mut job, &[0], &inputs)?;
        if !self.depends_on_length(tokens.len()) {
            cache.add(self.program(), Prefix::of(tokens, self.adapter_id(&job, 0), &job.rows[0]));
        }
        Ok(())
    }

    /// Initializes the rows of a call from cached prefixes; returns for each row how many tokens
    /// were reused.
    pub(crate) fn reuse_prefixes(
        &self,
        cache: Option<&PrefixCache>,
        inputs: &[Vec<u32>],
        job: &mut Job,
    ) -> Result<Vec<usize>> {
        let compiled = job.compiled.clone();
        let mut reused = vec![0; inputs.len()];
        let Some(cache) = cache else { return Ok(reused) };
        cache.check_owner(self)?;
        if compiled.gradient_edges(self.program()).is_some() {
            return Ok(reused);
        }
        for (row, tokens) in inputs.iter().enumerate() {
            // The last token of a prompt is always computed, for its logits.
            let limit = compiled.first_touched(self.program(), row).min(tokens.len() - 1);
            if self.depends_on_length(tokens.len()) {
                continue;
            }
            if let Some((prefix, count)) = cache.find(self.program(), self.adapter_id(job, row), tokens, limit) {
                let state = &mut job.rows[row];
                let begun = prefix.state.prefix(count, state.capacity.max(tokens.len()), tokens.len());
                *state = RowState { keeps_kv: state.keeps_kv, ..begun };
                reused[row] = count;
            }
        }
        Ok(reused)
    }

    /// Adds the computed prefixes of a call's rows to the cache, for rows that the plan has not
    /// edited.
    pub(crate) fn store_prefixes<'t>(
        &self,
        cache: Option<&PrefixCache>,
        job: &Job,
        rows: impl Iterator<Item = &'t [u32]>,
    ) {
        let compiled = &job.compiled;
        let Some(cache) = cache.filter(|cache| cache.adds_prefixes()) else { return };
        let program = self.program();
        let stateful = |kind: &OpKind| kind.is_recurrent() || matches!(kind, OpKind::Attention { .. });
        let all_ran = program.ops().iter().skip(compiled.ops).all(|op| !stateful(&op.kind));
        if !all_ran || compiled.gradient_edges(program).is_some() {
            return;
        }
        for (row, (tokens, state)) in rows.zip(&job.rows).enumerate() {
            if compiled.is_unedited(program, row) && !self.depends_on_length(state.len) {
                cache.add(program, Prefix::of(&tokens[..state.len], self.adapter_id(job, row), state));
            }
        }
    }

    /// The adapter of a row.
    fn adapter_id(&self, job: &Job, row: usize) -> Option<AdapterId> {
        job.adapter(row).map(|index| self.adapters()[index].id())
    }

    /// Whether a row of this length uses other rotary frequencies than shorter rows (LongRoPE,
    /// dynamic NTK), so that prefixes do not match.
    fn depends_on_length(&self, length: usize) -> bool {
        self.program().architecture().ropes.iter().any(|rope| rope.is_stretched(length))
    }
}

impl Prefix {
    fn of(tokens: &[u32], adapter: Option<AdapterId>, state: &RowState) -> Prefix {
        let state = state.prefix(tokens.len(), tokens.len(), tokens.len());
        let bytes = state.bytes() + 4 * tokens.len();
        Prefix { tokens: tokens.to_vec(), adapter, state, bytes }
    }
}

impl CompiledPlan {
    /// The first position of a row that a tap reads or edits.
    fn first_touched(&self, program: &Program, row: usize) -> usize {
        let first = |edge: EdgeId, rows: &[Option<SelectedPositions>]| match &rows[row] {
            Some(_) if program.edge(edge).layout == Layout::QueryKey => Some(0),
            chosen => chosen.as_ref().and_then(SelectedPositions::first),
        };
        let entries = self.taps.iter().filter_map(|entry| first(entry.edge, &entry.rows));
        let sources = self.sources.iter().filter_map(|source| first(source.edge, &source.rows));
        entries.chain(sources).min().unwrap_or(usize::MAX)
    }

    /// Whether a row's values are those of a run without a plan.
    fn is_unedited(&self, program: &Program, row: usize) -> bool {
        let unfused = |edge: EdgeId| program.edge(edge).layout == Layout::QueryKey;
        let alone = |entry: &CompiledTap| entry.rows[row].is_none() || entry.is_read_only() && !unfused(entry.edge);
        self.taps.iter().all(alone)
            && self.sources.iter().all(|source| source.rows[row].is_none() || !unfused(source.edge))
    }
}
