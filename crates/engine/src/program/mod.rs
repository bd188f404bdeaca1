//! A model as a list of ops whose named edges are the sites.
//!
//! [`Program::new`] (in `build.rs`) writes the list from an [`Architecture`]. Everything else reads it: the executor walks
//! it, plans are checked against its edges, the loader asks it which weights exist, `sites` prints it.

mod build;
mod op;
mod weight;

pub use crate::ids::{EdgeId, WeightId};
pub use build::{Network, Node};
pub use op::{Expert, Linear, Op, OpKind, RowOf, StateDecay};
pub use weight::{WeightKind, WeightSpec};

use crate::architecture::Architecture;
use crate::error::Result;
use crate::ids::IdVec;
use crate::point::{Point, Site};
use std::collections::BTreeMap;

/// Which tokens of a pass an edge covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Domain {
    /// Every token.
    #[default]
    All,
    /// Only the tokens of which somebody reads what the last MLP makes, or what follows it.
    Late,
    /// Only the tokens whose logits somebody reads.
    Read,
}

/// How one token's values on an edge are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[width]`
    Flat,
    /// `[heads, width / heads]`
    Heads(usize),
    /// One matrix of queries by keys for each head; the edge's width is the number of heads.
    QueryKey,
}

/// A value between ops: a matrix with one row a token.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// Numbers for each token.
    pub width: usize,
    /// Their arrangement.
    pub layout: Layout,
    /// Which tokens it covers.
    pub domain: Domain,
    /// The values are whole numbers.
    pub integer: bool,
    /// The values are made beside the flow, and can only be looked at.
    pub aside: bool,
    /// The op that makes it.
    pub made_by: usize,
}

/// An architecture's ops, edges, sites and weights.
#[derive(Clone, Debug)]
pub struct Program {
    architecture: Architecture,
    ops: Vec<Op>,
    edges: IdVec<EdgeId, Edge>,
    weights: IdVec<WeightId, WeightSpec>,
    sites: BTreeMap<Site, EdgeId>,
    /// For each edge the last op that reads it.
    last_use: IdVec<EdgeId, usize>,
    /// For each op the edges that nobody needs after it.
    dies_at: Vec<Vec<EdgeId>>,
    /// The first and one past the last op of each layer.
    layer_ops: Vec<std::ops::Range<usize>>,
}

impl Program {
    /// Writes the program of an architecture.
    pub fn new(architecture: Architecture) -> Result<Program> {
        build::build(architecture)
    }

    /// What it was made from.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The ops, in the order in which they run.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Whether something besides keys and values is carried from token to token.
    pub fn carries(&self) -> bool {
        self.ops.iter().any(|op| op.kind.carries())
    }

    /// All edges, by their ids.
    pub fn edges(&self) -> &[Edge] {
        self.edges.as_slice()
    }

    /// An edge.
    pub fn edge(&self, id: EdgeId) -> &Edge {
        &self.edges[id]
    }

    /// The ids of all edges, in order.
    pub fn edge_ids(&self) -> impl DoubleEndedIterator<Item = EdgeId> + ExactSizeIterator + use<> {
        self.edges.ids()
    }

    /// A list with the same item for each edge.
    pub(crate) fn list_by_edge<T: Clone>(&self, item: T) -> IdVec<EdgeId, T> {
        IdVec::filled(item, self.edges.len())
    }

    /// The weights that it needs.
    pub fn weights(&self) -> &[WeightSpec] {
        self.weights.as_slice()
    }

    /// A weight that it needs.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id]
    }

    /// The ids of all weights, in order.
    pub fn weight_ids(&self) -> impl DoubleEndedIterator<Item = WeightId> + ExactSizeIterator + use<> {
        self.weights.ids()
    }

    /// The weight of a name, if the program needs one.
    pub fn weight_named(&self, name: &str) -> Option<WeightId> {
        self.weight_ids().find(|&id| self.weights[id].name == name)
    }

    /// Every site, in forward order.
    pub fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        let mut sites: Vec<Site> = self.sites.keys().copied().collect();
        sites.sort_by_key(|site| {
            let before = site.layer.is_none()
                && self
                    .edge_of(*site)
                    .is_some_and(|edge| self.edges[edge].made_by < self.layer_ops.first().map_or(0, |r| r.start));
            // Names given by hand have no order of their own: they come as they are made.
            let named = matches!(site.point, Point::Named(_)).then(|| self.edge_of(*site));
            (if before { 0 } else { site.layer.map_or(usize::MAX, |layer| layer + 1) }, named, site.point)
        });
        sites.into_iter()
    }

    /// The edge of a site, if the model has it.
    pub fn edge_of(&self, site: Site) -> Option<EdgeId> {
        self.sites.get(&site).copied()
    }

    /// The edge of the logits, if the model has an unembedding.
    pub fn logits_edge(&self) -> Option<EdgeId> {
        self.edge_of(Site::model(Point::Logits))
    }

    /// The point of an edge that was named by hand.
    pub(crate) fn named(&self, name: &str) -> Option<Point> {
        let mut named = self.sites.keys().map(|site| site.point);
        named.find(|point| matches!(point, Point::Named(known) if *known == name))
    }

    /// The last op that reads an edge (or the one that makes it, when none does).
    pub fn last_use(&self, edge: EdgeId) -> usize {
        self.last_use[edge]
    }

    /// The edges that nobody needs after op `index`.
    pub fn dies_at(&self, index: usize) -> &[EdgeId] {
        &self.dies_at[index]
    }

    /// The ops of a layer.
    pub fn layer_ops(&self, layer: usize) -> std::ops::Range<usize> {
        self.layer_ops[layer].clone()
    }

    /// The shape of a site's value for `tokens` tokens, as captures have it.
    pub fn shape(&self, edge: EdgeId, tokens: usize) -> Vec<usize> {
        let edge = &self.edges[edge];
        match edge.layout {
            Layout::Flat => vec![tokens, edge.width],
            Layout::Heads(heads) => vec![tokens, heads, edge.width / heads],
            Layout::QueryKey => vec![edge.width, tokens, tokens],
        }
    }
}
