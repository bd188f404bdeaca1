//! Compiled plans: the form that the executor runs.

use super::compile_value::CompiledValues;
use super::sae_uses::SaeUse;
use super::select_experts::SelectedExperts;
use super::{Columns, CompiledAction, Consequence, EditSource, ValueId};
use crate::ids::IdVec;
use crate::point::Point;
use crate::program::{Edge, EdgeId, Program, TokenSet};
use crate::site::Site;

/// Lengths of the rows of a call, in tokens.
#[derive(Clone, Copy)]
pub(crate) struct Lengths<'a> {
    /// Prompt length per row.
    pub prompts: &'a [usize],
    /// Maximum length per row, generated tokens included.
    pub limits: &'a [usize],
}

/// A plan checked against a program, for rows of given lengths.
pub(crate) struct CompiledPlan {
    /// The plan's taps, one per matched site.
    pub taps: Vec<CompiledTap>,
    /// For each edge the indices of the taps on its activation, in the order in which they apply.
    pub at_edge: IdVec<EdgeId, Vec<usize>>,
    /// For each edge the indices of all its taps, on activation and gradient. The backward pass
    /// goes through them in reverse.
    pub backward_at_edge: IdVec<EdgeId, Vec<usize>>,
    pub values: CompiledValues,
    /// Prompt length per row.
    pub prompts: Vec<usize>,
    pub sources: Vec<Source>,
    /// For each edge the indices of the sources that read it.
    pub sources_at: IdVec<EdgeId, Vec<usize>>,
    /// Number of ops to run, from the start of the op list.
    pub ops: usize,
    /// Groups of rows; groups run one after the other.
    pub groups: Vec<Vec<usize>>,
    /// For each layer whether all rows skip it.
    pub skipped: Vec<bool>,
    /// Use of each attached autoencoder, by the index of its weights.
    pub sae_uses: Vec<SaeUse>,
    /// Sites that a pattern matched by layer but that do not exist.
    pub passed_over: Vec<Site>,
}

/// One tap at one matched site.
pub(crate) struct CompiledTap {
    /// Index of the tap in the plan.
    pub tap: usize,
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if any.
    pub rows: Vec<Option<SelectedPositions>>,
    /// The selection is all positions of all rows and all columns.
    pub whole: bool,
    pub columns: Columns,
    /// Experts whose slots it edits or captures; `columns` are then those of one slot.
    pub experts: Option<SelectedExperts>,
    /// Heads, for attention sites.
    pub heads: Vec<usize>,
    /// Key positions per row, for attention sites.
    pub keys: Option<Vec<Vec<usize>>>,
    pub action: CompiledAction,
    /// Index of the compiled tap that tests its condition.
    pub condition: Option<usize>,
    /// Values bound to the activation that it reads.
    pub binds: Vec<ValueId>,
}

impl CompiledTap {
    /// Returns the index of the source that its action writes, if any.
    pub fn source(&self) -> Option<usize> {
        match self.action.edit_source() {
            Some(EditSource::Site(source)) => Some(*source),
            _ => None,
        }
    }

    /// Returns the value that its action writes, if any.
    pub fn value(&self) -> Option<ValueId> {
        match self.action.edit_source() {
            Some(EditSource::Value(value)) => Some(*value),
            _ => None,
        }
    }

    /// Number of elements that it captures of a position.
    pub fn captured_len(&self) -> usize {
        self.columns.len() * self.experts.as_ref().map_or(1, SelectedExperts::len)
    }

    /// Shape of a position that it captures.
    pub fn captured_shape(&self, edge: &Edge) -> Vec<usize> {
        let inner = self.columns.shape(edge, 1)[1..].to_vec();
        match &self.experts {
            // One column per slot (weights): the axis of experts is enough.
            Some(experts) if experts.width == 1 => vec![experts.len()],
            Some(experts) => std::iter::once(experts.len()).chain(inner).collect(),
            None => inner,
        }
    }

    /// Whether gradients can flow through it: its action is differentiable, and it does not depend
    /// on a condition.
    pub fn is_differentiable(&self) -> bool {
        self.action.is_differentiable() && (self.condition.is_none() || self.is_read_only())
    }

    /// Whether it leaves the activation unchanged.
    pub fn is_read_only(&self) -> bool {
        self.action.is_read_only()
    }

    /// Whether it acts on a gradient instead of the activation.
    pub fn on_gradient(&self) -> bool {
        matches!(self.action, CompiledAction::Grad { .. })
    }
}

/// A site whose activation a tap writes elsewhere (`from`).
pub(crate) struct Source {
    pub site: Site,
    pub edge: EdgeId,
    /// For each row of the call its selected positions, if it is read.
    pub rows: Vec<Option<SelectedPositions>>,
    pub columns: Columns,
    pub heads: Vec<usize>,
    /// For each row of the call the row that it reads.
    pub read_by: Vec<Option<usize>>,
}

/// Selected positions of a row, each with its index in the result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectedPositions {
    /// `(position, index)`, sorted by position.
    by_position: Vec<(usize, usize)>,
}

impl SelectedPositions {
    pub(super) fn new(positions: Vec<usize>) -> std::result::Result<SelectedPositions, String> {
        let mut by_position: Vec<(usize, usize)> =
            positions.into_iter().enumerate().map(|(index, position)| (position, index)).collect();
        by_position.sort_unstable();
        match by_position.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("position {} is selected twice", pair[0].0)),
            None => Ok(SelectedPositions { by_position }),
        }
    }

    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// Returns the index of a position in the result, if it is selected.
    pub fn index_of(&self, position: usize) -> Option<usize> {
        let found = self.by_position.binary_search_by_key(&position, |&(p, _)| p).ok()?;
        Some(self.by_position[found].1)
    }

    /// Whether any position at or after `position` is selected.
    pub fn reaches(&self, position: usize) -> bool {
        self.by_position.last().is_some_and(|&(last, _)| last >= position)
    }

    /// Returns the smallest selected position.
    pub fn first(&self) -> Option<usize> {
        self.by_position.first().map(|&(first, _)| first)
    }

    /// Returns the positions in the order of the result.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.len()];
        self.by_position.iter().for_each(|&(position, index)| positions[index] = position);
        positions
    }
}

impl CompiledPlan {
    /// Returns a plan for one row that runs all ops and touches one edge, without reading or
    /// changing it: the tap is in no list of the forward pass.
    pub fn observing(program: &Program, edge: EdgeId) -> CompiledPlan {
        let tap = CompiledTap {
            tap: 0,
            site: Site::model(Point::Embed),
            edge,
            rows: vec![Some(SelectedPositions { by_position: Vec::new() })],
            whole: false,
            columns: Columns::All(program.edge(edge).width),
            experts: None,
            heads: Vec::new(),
            keys: None,
            action: CompiledAction::Read,
            condition: None,
            binds: Vec::new(),
        };
        let mut backward_at_edge = program.list_by_edge(Vec::new());
        backward_at_edge[edge].push(0);
        CompiledPlan {
            taps: vec![tap],
            at_edge: program.list_by_edge(Vec::new()),
            backward_at_edge,
            values: CompiledValues::default(),
            prompts: Vec::new(),
            sources: Vec::new(),
            sources_at: program.list_by_edge(Vec::new()),
            ops: program.ops().len(),
            groups: Vec::new(),
            skipped: vec![false; program.architecture().layers.len()],
            sae_uses: vec![SaeUse::default(); program.saes().count()],
            passed_over: Vec::new(),
        }
    }

    /// Whether a tap ends a generation by a condition.
    pub fn can_stop(&self) -> bool {
        let stops = |entry: &CompiledTap| matches!(&entry.action, CompiledAction::Condition(condition) if condition.then == Consequence::Stop);
        self.taps.iter().any(stops)
    }

    /// Whether the plan needs a backward pass.
    pub fn has_gradients(&self) -> bool {
        self.taps.iter().any(CompiledTap::on_gradient) || !self.values.weight_grads.is_empty()
    }

    /// Returns for each edge whether its gradient is needed; `None` if no gradient is.
    pub fn gradient_edges(&self, program: &Program) -> Option<IdVec<EdgeId, bool>> {
        if !self.has_gradients() {
            return None;
        }
        let mut needed = program.list_by_edge(false);
        self.taps.iter().filter(|entry| entry.on_gradient()).for_each(|entry| needed[entry.edge] = true);
        // Gradients also flow from an edit to the sites that its value was read from.
        for entry in &self.taps {
            let reads = entry.value().into_iter().flat_map(|value| &self.values.reads[value]);
            let reads = reads.filter_map(|&read| self.values.bound_by[read]).map(|entry| self.taps[entry].edge);
            let source = entry.source().map(|source| self.sources[source].edge);
            for edge in reads.chain(source) {
                (needed[edge], needed[entry.edge]) = (true, true);
            }
        }
        Some(needed)
    }

    /// Whether a tap or source selects a position of a row on an edge of a token set.
    pub fn reads(&self, program: &Program, token_set: TokenSet, row: usize, position: usize) -> bool {
        let in_set = |edge: EdgeId| program.edge(edge).token_set == token_set;
        let selects = |rows: &[Option<SelectedPositions>]| {
            rows[row].as_ref().is_some_and(|chosen| chosen.index_of(position).is_some())
        };
        self.taps.iter().any(|entry| in_set(entry.edge) && selects(&entry.rows))
            || self.sources.iter().any(|source| in_set(source.edge) && selects(&source.rows))
    }
}
