//! A checked plan: what the executor works from.

use super::compile_value::Values;
use super::{Columns, CompiledAction, Given, ValueId};
use crate::ids::IdVec;
use crate::program::{Domain, EdgeId, Program};
use crate::site::Site;

/// The rows of a call: how long each prompt is, and how many positions it may come to.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'a> {
    pub prompts: &'a [usize],
    pub limits: &'a [usize],
}

/// A checked plan for given rows.
pub(crate) struct Compiled {
    pub entries: Vec<Entry>,
    /// For each edge the entries on its value, in the order in which they apply.
    pub at_edge: IdVec<EdgeId, Vec<usize>>,
    /// For each edge those on its gradients among them, and all others: the way back goes through them in the opposite order.
    pub back_at_edge: IdVec<EdgeId, Vec<usize>>,
    pub values: Values,
    /// How long each prompt is.
    pub prompts: Vec<usize>,
    pub sources: Vec<Source>,
    /// For each edge the sources that read it.
    pub sources_at: IdVec<EdgeId, Vec<usize>>,
    /// How many ops have to run.
    pub ops: usize,
    /// Rows that run together, in order.
    pub groups: Vec<Vec<usize>>,
    /// Layers that nobody enters.
    pub skipped: Vec<bool>,
    /// Sites that patterns passed over.
    pub passed_over: Vec<Site>,
}

/// One tap at one site.
pub(crate) struct Entry {
    pub tap: usize,
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if any.
    pub rows: Vec<Option<Chosen>>,
    /// All positions of all rows and all columns: the whole value.
    pub whole: bool,
    pub columns: Columns,
    /// For attention sites: heads, and key positions by row.
    pub heads: Vec<usize>,
    pub keys: Option<Vec<Vec<usize>>>,
    pub action: CompiledAction,
    /// The values that it reads for.
    pub binds: Vec<ValueId>,
}

impl Entry {
    /// The source that its action reads, if any.
    pub fn source(&self) -> Option<usize> {
        match self.action.given() {
            Some(Given::Source(source)) => Some(*source),
            _ => None,
        }
    }

    /// The value that its action writes, if any.
    pub fn value(&self) -> Option<ValueId> {
        match self.action.given() {
            Some(Given::Computed(value)) => Some(*value),
            _ => None,
        }
    }

    /// Whether it only looks.
    pub fn looks(&self) -> bool {
        self.action.looks()
    }

    /// Whether it works on a gradient, not on the value.
    pub fn on_gradient(&self) -> bool {
        matches!(self.action, CompiledAction::Grad { .. })
    }
}

/// A site whose value another tap reads.
pub(crate) struct Source {
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if it is read.
    pub rows: Vec<Option<Chosen>>,
    pub columns: Columns,
    pub heads: Vec<usize>,
    /// For each row of the call the row that it reads from.
    pub read_by: Vec<Option<usize>>,
}

/// Chosen positions of a row: each with its place in the result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// `(position, place)`, by position.
    by_position: Vec<(usize, usize)>,
}

impl Chosen {
    pub(super) fn new(positions: Vec<usize>) -> std::result::Result<Chosen, String> {
        let mut by_position: Vec<(usize, usize)> =
            positions.into_iter().enumerate().map(|(place, position)| (position, place)).collect();
        by_position.sort_unstable();
        match by_position.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("position {} is selected twice", pair[0].0)),
            None => Ok(Chosen { by_position }),
        }
    }

    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// The place of a position in the result, if it is chosen.
    pub fn place(&self, position: usize) -> Option<usize> {
        let found = self.by_position.binary_search_by_key(&position, |&(p, _)| p).ok()?;
        Some(self.by_position[found].1)
    }

    /// Whether a position from `position` on is chosen.
    pub fn reaches(&self, position: usize) -> bool {
        self.by_position.last().is_some_and(|&(last, _)| last >= position)
    }

    /// The first position that is chosen.
    pub fn first(&self) -> Option<usize> {
        self.by_position.first().map(|&(first, _)| first)
    }

    /// The positions in the order of the result.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.len()];
        self.by_position.iter().for_each(|&(position, place)| positions[place] = position);
        positions
    }
}

impl Compiled {
    /// No taps, no rows.
    pub fn empty(program: &Program) -> Compiled {
        Compiled {
            entries: Vec::new(),
            at_edge: program.list_by_edge(Vec::new()),
            back_at_edge: program.list_by_edge(Vec::new()),
            values: Values::default(),
            prompts: Vec::new(),
            sources: Vec::new(),
            sources_at: program.list_by_edge(Vec::new()),
            ops: program.ops().len(),
            groups: Vec::new(),
            skipped: vec![false; program.architecture().layers.len()],
            passed_over: Vec::new(),
        }
    }

    /// For each edge whether its gradient is needed, if any is.
    pub fn gradient_edges(&self, program: &Program) -> Option<IdVec<EdgeId, bool>> {
        if !self.entries.iter().any(Entry::on_gradient) && self.values.weights.is_empty() {
            return None;
        }
        let mut wanted = program.list_by_edge(false);
        self.entries.iter().filter(|entry| entry.on_gradient()).for_each(|entry| wanted[entry.edge] = true);
        // Gradients also pass from what an edit wrote to where that was read.
        for entry in &self.entries {
            let reads = entry.value().into_iter().flat_map(|value| &self.values.reads[value]);
            let reads = reads.filter_map(|&read| self.values.bound_by[read]).map(|entry| self.entries[entry].edge);
            let source = entry.source().map(|source| self.sources[source].edge);
            for edge in reads.chain(source) {
                (wanted[edge], wanted[entry.edge]) = (true, true);
            }
        }
        Some(wanted)
    }

    /// Whether somebody looks at a position of a row on edges of a domain.
    pub fn reads(&self, program: &Program, domain: Domain, row: usize, position: usize) -> bool {
        let at_end = |edge: EdgeId| program.edge(edge).domain == domain;
        let chosen =
            |rows: &[Option<Chosen>]| rows[row].as_ref().is_some_and(|chosen| chosen.place(position).is_some());
        self.entries.iter().any(|entry| at_end(entry.edge) && chosen(&entry.rows))
            || self.sources.iter().any(|source| at_end(source.edge) && chosen(&source.rows))
    }
}
