//! Which attached autoencoders run under a plan.

use super::CompiledAction;
use super::compiled::CompiledTap;
use crate::ids::IdVec;
use crate::program::{EarlierFeatures, EdgeId, OpKind, Program};

/// How a plan uses an attached autoencoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SaeUse {
    /// Its op runs: a tap selects its features or its reconstruction, or a later layer of its
    /// cross-layer transcoder decodes its features.
    pub runs: bool,
    /// A later layer of its cross-layer transcoder decodes its features.
    pub feeds_later: bool,
}

/// The taps of a plan, by edge.
pub(super) struct TapsByEdge<'a> {
    pub taps: &'a [CompiledTap],
    pub at_edge: &'a IdVec<EdgeId, Vec<usize>>,
    pub backward_at_edge: &'a IdVec<EdgeId, Vec<usize>>,
    pub sources_at: &'a IdVec<EdgeId, Vec<usize>>,
}

impl TapsByEdge<'_> {
    fn touches(&self, edge: EdgeId) -> bool {
        !self.backward_at_edge[edge].is_empty() || !self.sources_at[edge].is_empty()
    }

    fn changes(&self, edge: EdgeId) -> bool {
        self.backward_at_edge[edge].iter().any(|&tap| !self.taps[tap].is_read_only())
    }

    fn splices(&self, edge: EdgeId) -> bool {
        self.at_edge[edge].iter().any(|&tap| matches!(self.taps[tap].action, CompiledAction::Splice(_)))
    }
}

/// Returns the use of each attached autoencoder, by the index of its weights.
pub(super) fn sae_uses(program: &Program, taps: &TapsByEdge) -> Vec<SaeUse> {
    let mut uses = Vec::new();
    for op in program.ops() {
        let OpKind::Sae { sae, ref earlier, pre, acts, recon, error, out, .. } = op.kind else { continue };
        if uses.len() <= sae {
            uses.resize(sae + 1, SaeUse::default());
        }
        let mut changed =
            [pre, acts].into_iter().chain(earlier.iter().flat_map(|features| [features.pre, features.acts]));
        let spliced = taps.splices(out);
        let reconstructs =
            spliced || taps.touches(recon) || taps.touches(error) || changed.any(|edge| taps.changes(edge));
        uses[sae].runs |= reconstructs || taps.touches(pre) || taps.touches(acts);
        if reconstructs {
            for &EarlierFeatures { sae, .. } in earlier {
                uses[sae] = SaeUse { runs: true, feeds_later: true };
            }
        }
    }
    uses
}
