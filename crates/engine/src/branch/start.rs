//! Determines where a branch starts.

use crate::plan::{CompiledAction, CompiledPlan, CompiledTap};
use crate::program::{EdgeId, Layout, OpKind, Program};

/// A point between layers, or before an attached autoencoder, where a branch may join the pass.
pub(super) struct JoinPoint {
    /// The op before which branches join.
    pub op: usize,
    /// The live edges: computed before this point and read after it.
    pub live: Vec<EdgeId>,
    /// The live edges that no earlier op has read.
    unread: Vec<EdgeId>,
}

/// The join points of a program, in order: one before each layer, one before each attached
/// autoencoder, and one after the last layer.
pub(super) fn join_points(program: &Program) -> Vec<JoinPoint> {
    let depth = program.architecture().layers.len();
    let mut first_use = program.list_by_edge(usize::MAX);
    for (index, op) in program.ops().iter().enumerate().rev() {
        op.kind.inputs().into_iter().for_each(|edge| first_use[edge] = index);
    }
    let layers = (0..depth).map(|layer| program.layer_ops(layer).start);
    let end = depth.checked_sub(1).map_or(0, |last| program.layer_ops(last).end);
    let is_sae = |&op: &usize| matches!(program.ops()[op].kind, OpKind::Sae { .. });
    let mut ops: Vec<usize> = layers.chain((0..program.ops().len()).filter(is_sae)).chain([end]).collect();
    ops.sort_unstable();
    ops.dedup();
    let point = |op: usize| {
        let is_live = |&edge: &EdgeId| program.edge(edge).producer < op && program.last_use(edge) >= op;
        let live: Vec<EdgeId> = program.edge_ids().filter(is_live).collect();
        let unread = live.iter().copied().filter(|&edge| first_use[edge] >= op).collect();
        JoinPoint { op, live, unread }
    };
    ops.into_iter().map(point).collect()
}

/// Whether ops from `first` on compute all features that they decode: those of the earlier layers
/// of cross-layer transcoders. The base has not kept them.
fn has_earlier_layers(program: &Program, compiled: &CompiledPlan, first: usize) -> bool {
    program.ops()[first..].iter().all(|op| match &op.kind {
        OpKind::Sae { sae, earlier, .. } if compiled.sae_uses[*sae].runs => {
            earlier.iter().all(|features| program.edge(features.acts).producer >= first)
        }
        _ => true,
    })
}

/// The starting op and position of a branch.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// The point at which it joins the pass; `None` if it starts at the first op.
    pub join_point: Option<usize>,
    /// The first op that it runs.
    pub op: usize,
    /// The first position that it computes; the row's length if it changes nothing.
    pub position: usize,
}

impl Start {
    /// Finds the start of a branch. The first `own` taps are the base's, whose effect the base's
    /// values already have.
    pub fn of(program: &Program, points: &[JoinPoint], compiled: &CompiledPlan, own: usize, length: usize) -> Start {
        let mine = |entry: &&CompiledTap| entry.tap >= own && entry.rows[0].is_some();
        // Unfused attention sums in a different order, for the whole row, so it counts as an edit.
        let unfused = |entry: &CompiledTap| program.edge(entry.edge).layout == Layout::QueryKey;
        let edits: Vec<&CompiledTap> =
            compiled.taps.iter().filter(mine).filter(|entry| unfused(entry) || !entry.is_read_only()).collect();
        let first = |entry: &&CompiledTap| match &entry.rows[0] {
            Some(chosen) if !unfused(entry) => chosen.positions().into_iter().min(),
            _ => Some(0),
        };
        let Some(first) = edits.iter().filter_map(first).min() else {
            let last = points.len() - 1;
            return Start { join_point: Some(last), op: points[last].op, position: length };
        };
        let sources = || edits.iter().filter_map(|entry| entry.source()).map(|source| compiled.sources[source].edge);
        let join_point = points.iter().rposition(|point| {
            let made = |edge: EdgeId| program.edge(edge).producer >= point.op;
            // An edit may read another edge (a skipped layer does), which must be computed here
            // too.
            // `splice` is applied by the op of its autoencoder; other edits also to a live edge.
            let by_op = |entry: &CompiledTap| matches!(entry.action, CompiledAction::Splice(_));
            let joins = |entry: &CompiledTap| !by_op(entry) && point.unread.contains(&entry.edge);
            edits.iter().all(|entry| made(entry.edge) || joins(entry))
                && sources().all(made)
                && has_earlier_layers(program, compiled, point.op)
        });
        let op = join_point.map_or(0, |point| points[point].op);
        // Recurrent states start at the first token. A value that a tap reads must come entirely
        // from the base or entirely from the branch.
        let recurrent = program.ops()[op..].iter().any(|op| op.kind.is_recurrent());
        let halved = compiled.taps.iter().any(|entry| {
            let Some(chosen) = entry.rows[0].as_ref() else { return false };
            let reads = matches!(entry.action, CompiledAction::Read) && program.edge(entry.edge).producer >= op;
            let early = |position: &usize| *position < first;
            reads && chosen.positions().iter().any(early) && !chosen.positions().iter().all(early)
        });
        Start { join_point, op, position: if recurrent || halved { 0 } else { first } }
    }

    /// Number of positions of an edge that are identical to the base's.
    pub fn shared(&self, program: &Program, points: &[JoinPoint], edge: EdgeId, length: usize) -> usize {
        let before = program.edge(edge).producer < self.op;
        let joins = self.join_point.is_some_and(|point| points[point].live.contains(&edge));
        if before && !joins { length } else { self.position }
    }
}
