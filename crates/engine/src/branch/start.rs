//! Where a branch starts.

use crate::plan::{Compiled, CompiledAction, Entry};
use crate::program::{EdgeId, Layout, Program};

/// A place between layers where a branch may join.
pub(super) struct Door {
    /// The first op of the layer, or of what follows the last.
    pub op: usize,
    /// The edges whose values cross here.
    pub crossing: Vec<EdgeId>,
    /// Those of them that nothing before has read.
    fresh: Vec<EdgeId>,
}

/// The doors of a program: one before each layer, and one after the last.
pub(super) fn doors(program: &Program) -> Vec<Door> {
    let depth = program.architecture().layers.len();
    let mut first_use = vec![usize::MAX; program.edge_count()];
    for (index, op) in program.ops().iter().enumerate().rev() {
        op.kind.inputs().into_iter().for_each(|edge| first_use[edge] = index);
    }
    let door = |layer: usize| {
        let op = match layer.checked_sub(1) {
            _ if layer < depth => program.layer_ops(layer).start,
            Some(last) => program.layer_ops(last).end,
            None => 0,
        };
        let crosses = |&edge: &EdgeId| program.edge(edge).made_by < op && program.last_use(edge) >= op;
        let crossing: Vec<EdgeId> = (0..program.edge_count()).filter(crosses).collect();
        let fresh = crossing.iter().copied().filter(|&edge| first_use[edge] >= op).collect();
        Door { op, crossing, fresh }
    };
    (0..=depth).map(door).collect()
}

/// The first thing that a branch has to compute.
pub(super) struct Start {
    /// The door at which it joins the batch; none where it starts at the very beginning.
    pub door: Option<usize>,
    /// The first op that it runs.
    pub op: usize,
    /// The first position that it computes; the row's length where it changes nothing.
    pub position: usize,
}

impl Start {
    /// Where a row of a joint plan starts; the first `own` taps are the base's, and change nothing that the base has not.
    pub fn of(program: &Program, doors: &[Door], compiled: &Compiled, row: usize, own: usize, length: usize) -> Start {
        let mine = |entry: &&Entry| entry.tap >= own && entry.rows[row].is_some();
        // Attention that somebody looks into is summed in another order, for the whole row: that counts as a change.
        let apart = |entry: &Entry| program.edge(entry.edge).layout == Layout::QueryKey;
        let edits: Vec<&Entry> =
            compiled.entries.iter().filter(mine).filter(|entry| apart(entry) || !entry.looks()).collect();
        let first = |entry: &&Entry| match &entry.rows[row] {
            Some(chosen) if !apart(entry) => chosen.positions().into_iter().min(),
            _ => Some(0),
        };
        let Some(first) = edits.iter().filter_map(first).min() else {
            let last = doors.len() - 1;
            return Start { door: Some(last), op: doors[last].op, position: length };
        };
        let sources = || edits.iter().filter_map(|entry| entry.source()).map(|source| compiled.sources[source].edge);
        let door = doors.iter().rposition(|door| {
            let made = |edge: EdgeId| program.edge(edge).made_by >= door.op;
            // What an edit takes from another edge (as a layer that is passed over does) has to be computed here too.
            edits.iter().all(|entry| made(entry.edge) || door.fresh.contains(&entry.edge)) && sources().all(made)
        });
        let op = door.map_or(0, |door| doors[door].op);
        // What is carried from token to token begins at the first; and a value is read in one piece, not half of the base.
        let carries = program.ops()[op..].iter().any(|op| op.kind.carries());
        let halved = compiled.entries.iter().any(|entry| {
            let Some(chosen) = entry.rows[row].as_ref() else { return false };
            let reads = matches!(entry.action, CompiledAction::Read) && program.edge(entry.edge).made_by >= op;
            let early = |position: &usize| *position < first;
            reads && chosen.positions().iter().any(early) && !chosen.positions().iter().all(early)
        });
        Start { door, op, position: if carries || halved { 0 } else { first } }
    }

    /// How many positions of an edge are the base's.
    pub fn shared(&self, program: &Program, doors: &[Door], edge: EdgeId, length: usize) -> usize {
        let before = program.edge(edge).made_by < self.op;
        let joins = self.door.is_some_and(|door| doors[door].crossing.contains(&edge));
        if before && !joins { length } else { self.position }
    }
}
