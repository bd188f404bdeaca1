//! Where a branch starts.

use crate::plan::{Compiled, CompiledAction, Entry};
use crate::program::{EdgeId, Layout, Program};

/// A point between layers where a branch may join the pass.
pub(super) struct JoinPoint {
    /// The first op of the layer, or the one after the last layer.
    pub op: usize,
    /// The edges alive here: made before and read after.
    pub live: Vec<EdgeId>,
    /// Those of them that no op before has read.
    unread: Vec<EdgeId>,
}

/// The join points of a program: one before each layer, and one after the last.
pub(super) fn join_points(program: &Program) -> Vec<JoinPoint> {
    let depth = program.architecture().layers.len();
    let mut first_use = program.list_by_edge(usize::MAX);
    for (index, op) in program.ops().iter().enumerate().rev() {
        op.kind.inputs().into_iter().for_each(|edge| first_use[edge] = index);
    }
    let point = |layer: usize| {
        let op = match layer.checked_sub(1) {
            _ if layer < depth => program.layer_ops(layer).start,
            Some(last) => program.layer_ops(last).end,
            None => 0,
        };
        let is_live = |&edge: &EdgeId| program.edge(edge).made_by < op && program.last_use(edge) >= op;
        let live: Vec<EdgeId> = program.edge_ids().filter(is_live).collect();
        let unread = live.iter().copied().filter(|&edge| first_use[edge] >= op).collect();
        JoinPoint { op, live, unread }
    };
    (0..=depth).map(point).collect()
}

/// Where a branch starts.
#[derive(Clone, Copy)]
pub(super) struct Start {
    /// The point at which it joins the pass; none where it starts at the first op.
    pub join_point: Option<usize>,
    /// The first op that it runs.
    pub op: usize,
    /// The first position that it computes; the row's length where it changes nothing.
    pub position: usize,
}

impl Start {
    /// Where a branch of a plan starts. The first `own` taps are the base's, and change nothing that the base has not.
    pub fn of(program: &Program, points: &[JoinPoint], compiled: &Compiled, own: usize, length: usize) -> Start {
        let mine = |entry: &&Entry| entry.tap >= own && entry.rows[0].is_some();
        // Unfused attention is summed in another order, for the whole row: that counts as a change.
        let unfused = |entry: &Entry| program.edge(entry.edge).layout == Layout::QueryKey;
        let edits: Vec<&Entry> =
            compiled.entries.iter().filter(mine).filter(|entry| unfused(entry) || !entry.looks()).collect();
        let first = |entry: &&Entry| match &entry.rows[0] {
            Some(chosen) if !unfused(entry) => chosen.positions().into_iter().min(),
            _ => Some(0),
        };
        let Some(first) = edits.iter().filter_map(first).min() else {
            let last = points.len() - 1;
            return Start { join_point: Some(last), op: points[last].op, position: length };
        };
        let sources = || edits.iter().filter_map(|entry| entry.source()).map(|source| compiled.sources[source].edge);
        let join_point = points.iter().rposition(|point| {
            let made = |edge: EdgeId| program.edge(edge).made_by >= point.op;
            // An edit may take the value of another edge (as a skipped layer does): that has to be computed here too.
            edits.iter().all(|entry| made(entry.edge) || point.unread.contains(&entry.edge)) && sources().all(made)
        });
        let op = join_point.map_or(0, |point| points[point].op);
        // Recurrent states begin at the first token; and a value is read in one piece, not half of it from the base.
        let recurrent = program.ops()[op..].iter().any(|op| op.kind.carries());
        let halved = compiled.entries.iter().any(|entry| {
            let Some(chosen) = entry.rows[0].as_ref() else { return false };
            let reads = matches!(entry.action, CompiledAction::Read) && program.edge(entry.edge).made_by >= op;
            let early = |position: &usize| *position < first;
            reads && chosen.positions().iter().any(early) && !chosen.positions().iter().all(early)
        });
        Start { join_point, op, position: if recurrent || halved { 0 } else { first } }
    }

    /// How many positions of an edge are the base's.
    pub fn shared(&self, program: &Program, points: &[JoinPoint], edge: EdgeId, length: usize) -> usize {
        let before = program.edge(edge).made_by < self.op;
        let joins = self.join_point.is_some_and(|point| points[point].live.contains(&edge));
        if before && !joins { length } else { self.position }
    }
}
