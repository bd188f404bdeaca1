//! The tokens for which an attached autoencoder runs.

use super::{Taps, selected};
use crate::job::{Job, Pass};
use crate::plan::{Columns, CompiledAction, CompiledReduce, CompiledTap, SelectedPositions, Splice};
use crate::program::{EdgeId, OpKind, Program};
use crate::sae::ActiveFeatures;

/// The value with which the model continues at a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaeOutput {
    /// The activation: taps only read the autoencoder.
    Unchanged,
    /// The reconstruction.
    Recon,
    /// The reconstruction plus the error of the unedited features.
    ReconAndError,
}

/// A token for which an autoencoder runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SaeToken {
    /// Its index on the autoencoder's edges.
    pub index: usize,
    pub output: SaeOutput,
}

impl Taps<'_, '_> {
    /// Whether the plan of any job uses an attached autoencoder, given by the index of its weights.
    pub(crate) fn runs_sae(&self, sae: usize) -> bool {
        self.jobs.iter().any(|job| job.compiled.sae_uses[sae].runs)
    }

    /// Whether a later layer of a cross-layer transcoder decodes the features of an autoencoder.
    pub(crate) fn feeds_later_layers(&self, sae: usize) -> bool {
        self.jobs.iter().any(|job| job.compiled.sae_uses[sae].feeds_later)
    }

    /// The tokens for which the autoencoder of op `index` runs, in ascending order.
    pub(crate) fn sae_tokens(&self, program: &Program, pass: &Pass, index: usize) -> Vec<SaeToken> {
        sae_tokens(program, pass, index, &|job| self.jobs[job])
    }

    /// Whether a tap of any job changes an edge.
    pub(crate) fn edits(&self, edge: EdgeId) -> bool {
        self.jobs.iter().any(|job| job.compiled.at_edge[edge].iter().any(|&i| !job.compiled.taps[i].is_read_only()))
    }

    /// Whether all taps of an edge are sparse captures of all its units, so that no tap needs the
    /// dense value. True for an edge without taps.
    pub(crate) fn captures_sparse_only(&self, edge: EdgeId) -> bool {
        let is_sparse = |entry: &CompiledTap| {
            let reduces = matches!(entry.action, CompiledAction::Capture(CompiledReduce::Sparse(_)));
            reduces && matches!(entry.columns, Columns::All(_))
        };
        self.jobs.iter().all(|job| {
            let compiled = &job.compiled;
            compiled.sources_at[edge].is_empty() && compiled.at_edge[edge].iter().all(|&i| is_sparse(&compiled.taps[i]))
        })
    }

    /// Adds the active features of the tokens of a pass to the sparse captures of an edge, which
    /// has no other taps.
    pub(crate) fn collect_active(&mut self, program: &Program, pass: &Pass, edge: EdgeId, active: &[ActiveFeatures]) {
        let token_set = program.edge(edge).token_set;
        for (index, job) in self.jobs.iter_mut().enumerate() {
            let compiled = job.compiled.clone();
            let captures = compiled.at_edge[edge].iter().map(|&tap| (tap, &compiled.taps[tap]));
            for (tap, entry) in captures.filter(|(_, entry)| !job.ignores(entry)).collect::<Vec<_>>() {
                for segment in pass.segments_of(index) {
                    let Some(chosen) = &entry.rows[segment.row] else { continue };
                    for (token, _, nth) in selected(pass, segment, token_set, chosen) {
                        job.collector.collect_active(tap, segment.row, entry, nth, &active[token]);
                    }
                }
            }
        }
    }

    /// Whether the taps of an edge need all its tokens at once: a capture that takes over the
    /// buffer, a closure, or a computed value.
    pub(crate) fn needs_tokens_together(&self, edge: EdgeId) -> bool {
        let joins = |entry: &CompiledTap| {
            matches!(entry.action, CompiledAction::Call(_) | CompiledAction::Read) || entry.value().is_some()
        };
        self.captures_whole(edge)
            || self.jobs.iter().any(|job| job.compiled.at_edge[edge].iter().any(|&i| joins(&job.compiled.taps[i])))
    }
}

/// The tokens for which the autoencoder of op `index` runs: those at which a tap of their job
/// selects its activations, edits the features of an earlier layer that it decodes, or needs its
/// features for the reconstruction of a later layer.
pub(crate) fn sae_tokens<'j>(
    program: &Program,
    pass: &Pass,
    index: usize,
    job: &dyn Fn(usize) -> &'j Job,
) -> Vec<SaeToken> {
    let op = &program.ops()[index];
    let OpKind::Sae { sae, acts, out, .. } = op.kind else { unreachable!("the op of an autoencoder") };
    let mut tokens = Vec::new();
    for segment in &pass.segments {
        let job = job(segment.job);
        let used = job.compiled.sae_uses[sae];
        if !used.runs || op.layer.is_some_and(|layer| job.compiled.skipped[layer]) {
            continue;
        }
        let later: Vec<&OpKind> = match used.feeds_later {
            true => program.later_layers(acts).map(|op| &op.kind).collect(),
            false => Vec::new(),
        };
        for (index, position) in pass.segment_tokens(program.edge(out).token_set, segment) {
            let taps = PositionTaps { job, row: segment.row, position };
            let needed_later = || later.iter().any(|kind| taps.reconstructs(kind));
            let output = taps.output(&op.kind).or_else(|| needed_later().then_some(SaeOutput::Unchanged));
            tokens.extend(output.map(|output| SaeToken { index, output }));
        }
    }
    tokens
}

/// The taps of a job at one position of a row.
struct PositionTaps<'a> {
    job: &'a Job,
    row: usize,
    position: usize,
}

impl PositionTaps<'_> {
    fn nth(&self, rows: &[Option<SelectedPositions>]) -> Option<usize> {
        rows[self.row].as_ref()?.index_of(self.position)
    }

    /// The splice of an autoencoder with output `out`.
    fn splice(&self, out: EdgeId) -> Option<Splice> {
        let compiled = &*self.job.compiled;
        compiled.at_edge[out].iter().map(|&tap| &compiled.taps[tap]).find_map(|entry| {
            let CompiledAction::Splice(splice) = entry.action else { return None };
            let nth = self.nth(&entry.rows)?;
            self.job.collector.applies(entry, self.row, nth).then_some(splice)
        })
    }

    /// Whether a tap selects an edge, or its gradient.
    fn reads(&self, edge: EdgeId) -> bool {
        let compiled = &*self.job.compiled;
        compiled.backward_at_edge[edge].iter().any(|&tap| self.nth(&compiled.taps[tap].rows).is_some())
            || compiled.sources_at[edge].iter().any(|&source| self.nth(&compiled.sources[source].rows).is_some())
    }

    /// Whether a tap changes an edge, or selects its gradient: a gradient flows through the
    /// features only if the model continues with them.
    fn changes(&self, edge: EdgeId) -> bool {
        let compiled = &*self.job.compiled;
        let entries = compiled.backward_at_edge[edge].iter().map(|&tap| &compiled.taps[tap]);
        { entries }.any(|entry| !entry.is_read_only() && self.nth(&entry.rows).is_some())
    }

    /// Whether a tap changes features that an autoencoder decodes: its own, or those of earlier
    /// layers.
    fn changes_features(&self, kind: &OpKind) -> bool {
        let OpKind::Sae { pre, acts, ref earlier, .. } = *kind else { return false };
        let earlier = earlier.iter().flat_map(|features| [features.pre, features.acts]);
        [pre, acts].into_iter().chain(earlier).any(|edge| self.changes(edge))
    }

    /// Whether an autoencoder computes its reconstruction.
    fn reconstructs(&self, kind: &OpKind) -> bool {
        let OpKind::Sae { recon, error, out, .. } = *kind else { return false };
        self.splice(out).is_some() || self.reads(recon) || self.reads(error) || self.changes_features(kind)
    }

    /// The value with which the model continues; `None` if no tap selects the autoencoder.
    fn output(&self, kind: &OpKind) -> Option<SaeOutput> {
        let OpKind::Sae { pre, acts, recon, error, out, .. } = *kind else { return None };
        match self.splice(out) {
            Some(Splice::Recon) => Some(SaeOutput::Recon),
            Some(Splice::ReconAndError) => Some(SaeOutput::ReconAndError),
            None if self.changes_features(kind) || self.changes(recon) || self.changes(error) => {
                Some(SaeOutput::ReconAndError)
            }
            None => [pre, acts, recon, error].iter().any(|&edge| self.reads(edge)).then_some(SaeOutput::Unchanged),
        }
    }
}
