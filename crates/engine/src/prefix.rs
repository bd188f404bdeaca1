//! Prefixes: what rows have computed, kept for rows of later calls that begin with the same tokens.
//!
//! A row's keys and values (and what recurrent ops carry) depend on its own tokens only, in their bits. So a call may take them over from an
//! earlier one as far as its row begins alike, and as far as its plan touches nothing there: what somebody reads or changes has to be
//! computed. Attention that a plan looks into is summed in another order for the whole row, so such rows take nothing over.

use crate::error::{Error, Result};
use crate::exec::Executor;
use crate::interrupt::Watch;
use crate::job::{CacheUse, Job, RowState};
use crate::model::Model;
use crate::plan::{Chosen, Compiled, Entry, Lengths, Plan};
use crate::program::{EdgeId, Layout, OpKind, Program};
use crate::weights::Weights;
use pellucid_kernels::attention::KvFormat;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Kept prefixes of one model. Cheap to clone; clones share what is kept.
#[derive(Clone)]
pub struct PrefixCache(Arc<Shared>);

struct Shared {
    /// Bytes that may be kept.
    room: usize,
    /// Whether calls add what they have computed.
    learns: bool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Whose prefixes these are, once there are some.
    owner: Weak<Weights>,
    format: KvFormat,
    /// Used last, listed last.
    prefixes: Vec<Arc<Prefix>>,
    counts: PrefixCounts,
}

/// The state of a row after its first tokens.
struct Prefix {
    tokens: Vec<u32>,
    state: RowState,
    bytes: usize,
}

/// What a cache holds, and what it has saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Prefixes kept.
    pub kept: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Rows that took something over.
    pub hits: usize,
    /// Tokens that were not computed again.
    pub tokens: usize,
}

impl PrefixCache {
    /// A cache of at most `room` bytes, which learns from the calls that it is given to. Prefixes that were not used for the longest
    /// time make room for others.
    pub fn new(room: usize) -> PrefixCache {
        PrefixCache(Arc::new(Shared { room, learns: true, kept: Mutex::default() }))
    }

    /// What it holds, and what it has saved so far.
    pub fn counts(&self) -> PrefixCounts {
        let kept = self.kept();
        let bytes = kept.prefixes.iter().map(|prefix| prefix.bytes).sum();
        PrefixCounts { kept: kept.prefixes.len(), bytes, ..kept.counts }
    }

    /// Lets go of everything.
    pub fn clear(&self) {
        self.kept().prefixes.clear();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The longest kept beginning of a row, at most `limit` tokens of it: the prefix, and how many of its tokens.
    fn find(&self, program: &Program, tokens: &[u32], limit: usize) -> Option<(Arc<Prefix>, usize)> {
        let mut kept = self.kept();
        let usable = |prefix: &Prefix| {
            let common = prefix.tokens.iter().zip(&tokens[..limit]).take_while(|(a, b)| a == b).count();
            // What is carried from token to token is known after the last of them only.
            if program.carries() && common < prefix.tokens.len() { 0 } else { common }
        };
        let (index, count) =
            kept.prefixes.iter().map(|prefix| usable(prefix)).enumerate().max_by_key(|&(_, count)| count)?;
        if count == 0 {
            return None;
        }
        let prefix = kept.prefixes.remove(index);
        kept.prefixes.push(prefix.clone());
        kept.counts.hits += 1;
        kept.counts.tokens += count;
        Some((prefix, count))
    }

    /// Whether it keeps what calls compute.
    pub(crate) fn learns(&self) -> bool {
        self.0.learns
    }

    fn add(&self, program: &Program, prefix: Prefix) {
        let mut kept = self.kept();
        let covers = |long: &Prefix, short: &Prefix| {
            long.tokens.starts_with(&short.tokens) && (!program.carries() || long.tokens.len() == short.tokens.len())
        };
        if prefix.bytes > self.0.room || kept.prefixes.iter().any(|known| covers(known, &prefix)) {
            return;
        }
        kept.prefixes.retain(|known| !covers(&prefix, known));
        let mut bytes = prefix.bytes + kept.prefixes.iter().map(|known| known.bytes).sum::<usize>();
        kept.prefixes.push(Arc::new(prefix));
        while bytes > self.0.room {
            bytes -= kept.prefixes.remove(0).bytes;
        }
    }

    /// Refuses a cache that holds another model's prefixes.
    fn check_owner(&self, model: &Model) -> Result<()> {
        let mut kept = self.kept();
        let owner = kept.owner.upgrade();
        let same = owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, model.shared_weights()));
        if same && kept.format == model.kv() {
            return Ok(());
        }
        if owner.is_some() && !kept.prefixes.is_empty() {
            return Err(Error::input("these prefixes belong to another model", "make a cache for each model"));
        }
        kept.prefixes.clear();
        (kept.owner, kept.format) = (Arc::downgrade(model.shared_weights()), model.kv());
        Ok(())
    }
}

impl std::fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PrefixCache").field(&self.counts()).finish()
    }
}

impl Model {
    /// Computes a prefix to be given to later calls: a cache that holds these tokens and learns nothing more.
    pub fn prefix(&self, tokens: &[u32]) -> Result<PrefixCache> {
        let cache = PrefixCache(Arc::new(Shared { room: usize::MAX, learns: false, kept: Mutex::default() }));
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
        let mut job = Job::new(compiled, self.kv(), None, CacheUse::Keep, false);
        Executor::new(self, Watch::new(None)).prefill(&mut job, &[0], &inputs)?;
        if !self.depends_on_length(tokens.len()) {
            cache.add(self.program(), Prefix::of(tokens, &job.rows[0]));
        }
        Ok(())
    }

    /// Begins the rows of a call with what is kept of them; gives for each row how many tokens need not be computed.
    pub(crate) fn take_over(
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
            // The last token of a prompt is always computed: something is to come out.
            let limit = compiled.first_touched(self.program(), row).min(tokens.len() - 1);
            if self.depends_on_length(tokens.len()) {
                continue;
            }
            if let Some((prefix, count)) = cache.find(self.program(), tokens, limit) {
                let state = &mut job.rows[row];
                let begun = prefix.state.prefix(count, state.capacity.max(tokens.len()), tokens.len());
                *state = RowState { keeps_kv: state.keeps_kv, ..begun };
                reused[row] = count;
            }
        }
        Ok(reused)
    }

    /// Keeps what the rows of a call have computed, where no plan has changed it.
    pub(crate) fn learn<'t>(&self, cache: Option<&PrefixCache>, job: &Job, rows: impl Iterator<Item = &'t [u32]>) {
        let compiled = &job.compiled;
        let Some(cache) = cache.filter(|cache| cache.learns()) else { return };
        let program = self.program();
        let stateful = |kind: &OpKind| kind.carries() || matches!(kind, OpKind::Attention { .. });
        let all_ran = program.ops().iter().skip(compiled.ops).all(|op| !stateful(&op.kind));
        if !all_ran || compiled.gradient_edges(program).is_some() {
            return;
        }
        for (row, (tokens, state)) in rows.zip(&job.rows).enumerate() {
            if compiled.leaves_alone(program, row) && !self.depends_on_length(state.len) {
                cache.add(program, Prefix::of(&tokens[..state.len], state));
            }
        }
    }

    /// Whether a row of this length is turned by other angles than shorter rows are.
    fn depends_on_length(&self, length: usize) -> bool {
        self.program().architecture().ropes.iter().any(|rope| rope.is_stretched(length))
    }
}

impl Prefix {
    fn of(tokens: &[u32], state: &RowState) -> Prefix {
        let state = state.prefix(tokens.len(), tokens.len(), tokens.len());
        let bytes = state.bytes() + 4 * tokens.len();
        Prefix { tokens: tokens.to_vec(), state, bytes }
    }
}

impl Compiled {
    /// The first position of a row that somebody reads or changes.
    fn first_touched(&self, program: &Program, row: usize) -> usize {
        let first = |edge: EdgeId, rows: &[Option<Chosen>]| match &rows[row] {
            Some(_) if program.edge(edge).layout == Layout::QueryKey => Some(0),
            chosen => chosen.as_ref().and_then(Chosen::first),
        };
        let entries = self.entries.iter().filter_map(|entry| first(entry.edge, &entry.rows));
        let sources = self.sources.iter().filter_map(|source| first(source.edge, &source.rows));
        entries.chain(sources).min().unwrap_or(usize::MAX)
    }

    /// Whether a row computes what it would without a plan.
    fn leaves_alone(&self, program: &Program, row: usize) -> bool {
        let apart = |edge: EdgeId| program.edge(edge).layout == Layout::QueryKey;
        let alone = |entry: &Entry| entry.rows[row].is_none() || entry.looks() && !apart(entry.edge);
        self.entries.iter().all(alone)
            && self.sources.iter().all(|source| source.rows[row].is_none() || !apart(source.edge))
    }
}
