//! The tokens for which an attached autoencoder runs.

use super::Taps;
use crate::job::{Job, Pass};
use crate::plan::{CompiledAction, CompiledTap, SelectedPositions, Splice};
use crate::program::{EdgeId, OpKind, Program};

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
    /// The tokens at which a tap selects an activation of an autoencoder, in ascending order.
    pub(crate) fn sae_tokens(&self, program: &Program, pass: &Pass, kind: &OpKind) -> Vec<SaeToken> {
        sae_tokens(program, pass, kind, &|job| self.jobs[job])
    }

    /// Whether a tap of any job changes an edge.
    pub(crate) fn edits(&self, edge: EdgeId) -> bool {
        self.jobs.iter().any(|job| job.compiled.at_edge[edge].iter().any(|&i| !job.compiled.taps[i].is_read_only()))
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

/// The tokens at which a tap of their job selects an activation of an autoencoder.
pub(crate) fn sae_tokens<'j>(
    program: &Program,
    pass: &Pass,
    kind: &OpKind,
    job: &dyn Fn(usize) -> &'j Job,
) -> Vec<SaeToken> {
    let OpKind::Sae { pre, acts, recon, error, out, .. } = *kind else { unreachable!("the op of an autoencoder") };
    let inside = [pre, acts, recon, error];
    let mut tokens = Vec::new();
    for segment in &pass.segments {
        let job = job(segment.job);
        if !job.touches(out) && !inside.iter().any(|&edge| job.touches(edge)) {
            continue;
        }
        let compiled = &*job.compiled;
        let nth = |rows: &[Option<SelectedPositions>], position| rows[segment.row].as_ref()?.index_of(position);
        for (index, position) in pass.segment_tokens(program.edge(out).token_set, segment) {
            let spliced = compiled.at_edge[out].iter().map(|&i| &compiled.taps[i]).find_map(|entry| {
                let CompiledAction::Splice(splice) = entry.action else { return None };
                let nth = nth(&entry.rows, position)?;
                job.collector.applies(entry, segment.row, nth).then_some(splice)
            });
            let mut read = false;
            let mut changed = false;
            for &edge in &inside {
                for entry in compiled.backward_at_edge[edge].iter().map(|&i| &compiled.taps[i]) {
                    let selected = nth(&entry.rows, position).is_some();
                    read |= selected;
                    // A gradient flows through the features only if the model continues with them.
                    changed |= selected && !entry.is_read_only();
                }
                read |= compiled.sources_at[edge].iter().any(|&i| nth(&compiled.sources[i].rows, position).is_some());
            }
            let output = match spliced {
                Some(Splice::Recon) => SaeOutput::Recon,
                Some(Splice::ReconAndError) => SaeOutput::ReconAndError,
                None if changed => SaeOutput::ReconAndError,
                None if read => SaeOutput::Unchanged,
                None => continue,
            };
            tokens.push(SaeToken { index, output });
        }
    }
    tokens
}
