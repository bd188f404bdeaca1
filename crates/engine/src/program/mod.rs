//! A model as a list of ops whose named edges are the sites.
//!
//! [`Program::new`] (in `build/`) builds the list from an [`Architecture`]. Everything else reads
//! it: the executor runs it, plans are checked against its edges, the loader takes the list of
//! weights from it, `pellucid sites` prints it.

mod attach;
mod build;
mod op;
mod weight;

pub use crate::ids::{EdgeId, WeightId};
pub use attach::SaeAttachment;
pub use build::{Network, Node};
pub use op::{EarlierFeatures, Expert, Linear, Op, OpKind, StateDecay, TableRow};
pub use weight::{WeightKind, WeightSpec};

use crate::architecture::Architecture;
use crate::error::Result;
use crate::ids::IdVec;
use crate::point::{Point, Site};
use std::collections::BTreeMap;

/// Which tokens of a pass an edge covers.
///
/// Tokens do not interact after the last attention, so from there on only the tokens whose output
/// is used are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenSet {
    /// Every token.
    #[default]
    All,
    /// Tokens whose last-MLP output, or anything computed from it, is needed.
    ForLastMlp,
    /// Tokens whose logits are needed.
    ForLogits,
}

/// Layout of one token's elements on an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[width]`
    Flat,
    /// `[heads, width / heads]`
    Heads(usize),
    /// `[heads, queries, keys]`: attention scores and weights. The edge's width is the number of
    /// heads.
    QueryKey,
}

/// Routing of an edge whose columns are slots, one per chosen expert of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Edge of the chosen experts, `[tokens, slots]`.
    pub indices: EdgeId,
    /// Number of chosen experts per token.
    pub slots: usize,
    /// Number of experts in the layer.
    pub experts: usize,
}

/// A tensor between ops, `[tokens, width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Edge {
    /// Elements per token.
    pub width: usize,
    /// Layout of these elements.
    pub layout: Layout,
    /// Which tokens it covers.
    pub token_set: TokenSet,
    /// The elements are integers (expert indices).
    pub integer: bool,
    /// The routing behind an edge with one slot per chosen expert (weights, indices and outputs of
    /// experts).
    pub routed: Option<Routed>,
    /// No op reads this edge (a recurrent state): taps can capture it, edits are rejected.
    pub observe_only: bool,
    /// Index of the op that computes it.
    pub producer: usize,
}

/// An architecture's ops, edges, sites and weights.
#[derive(Clone, Debug)]
pub struct Program {
    architecture: Architecture,
    ops: Vec<Op>,
    edges: IdVec<EdgeId, Edge>,
    weights: IdVec<WeightId, WeightSpec>,
    sites: BTreeMap<Site, EdgeId>,
    /// For each edge the last op that reads it, or its producer.
    last_use: IdVec<EdgeId, usize>,
    /// For each op the edges whose last reader it is.
    dead_after: Vec<Vec<EdgeId>>,
    /// Op range of each layer.
    layer_ops: Vec<std::ops::Range<usize>>,
}

impl Program {
    /// Builds the program of an architecture; fails if its sizes contradict each other.
    pub fn new(architecture: Architecture) -> Result<Program> {
        build::build(architecture)
    }

    /// Returns the architecture that it was built from.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the ops in execution order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Whether any op carries a state from token to token, other than the KV cache.
    pub fn is_recurrent(&self) -> bool {
        self.ops.iter().any(|op| op.kind.is_recurrent())
    }

    /// Returns all edges, ordered by id.
    pub fn edges(&self) -> &[Edge] {
        self.edges.as_slice()
    }

    /// Returns an edge.
    pub fn edge(&self, id: EdgeId) -> &Edge {
        &self.edges[id]
    }

    /// Returns the ids of all edges, in order.
    pub fn edge_ids(&self) -> impl DoubleEndedIterator<Item = EdgeId> + ExactSizeIterator + use<> {
        self.edges.ids()
    }

    /// Returns a list with one copy of `item` per edge.
    pub(crate) fn list_by_edge<T: Clone>(&self, item: T) -> IdVec<EdgeId, T> {
        IdVec::filled(item, self.edges.len())
    }

    /// Returns the specs of all weights, ordered by id.
    pub fn weights(&self) -> &[WeightSpec] {
        self.weights.as_slice()
    }

    /// Returns a weight's spec.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id]
    }

    /// Returns the ids of all weights, in order.
    pub fn weight_ids(&self) -> impl DoubleEndedIterator<Item = WeightId> + ExactSizeIterator + use<> {
        self.weights.ids()
    }

    /// Returns the id of the weight called `name`.
    pub fn weight_named(&self, name: &str) -> Option<WeightId> {
        self.weight_ids().find(|&id| self.weights[id].name == name)
    }

    /// Returns the weight with the most similar name, for hints.
    pub fn nearest_weight(&self, name: &str) -> Option<&str> {
        let similarity = |spec: &&WeightSpec| strsim::jaro_winkler(name, &spec.name);
        let nearest = self.weights.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        nearest.map(|spec| spec.name.as_str())
    }

    /// Returns all sites, in forward order.
    pub fn sites(&self) -> impl Iterator<Item = Site> + '_ {
        let mut sites: Vec<Site> = self.sites.keys().copied().collect();
        sites.sort_by_key(|site| {
            let before = site.layer.is_none()
                && self
                    .edge_of(*site)
                    .is_some_and(|edge| self.edges[edge].producer < self.layer_ops.first().map_or(0, |r| r.start));
            // Named edges of a `Network` sort by edge id, which is their creation order.
            let named = matches!(site.point, Point::Named(_)).then(|| self.edge_of(*site));
            (if before { 0 } else { site.layer.map_or(usize::MAX, |layer| layer + 1) }, named, site.point)
        });
        sites.into_iter()
    }

    /// Returns the edge of a site, if the model has it.
    pub fn edge_of(&self, site: Site) -> Option<EdgeId> {
        self.sites.get(&site).copied()
    }

    /// Returns the edge of the logits, if the model has an unembedding.
    pub fn logits_edge(&self) -> Option<EdgeId> {
        self.edge_of(Site::model(Point::Logits))
    }

    /// Returns the point of a [`Network`]'s named edge.
    pub(crate) fn named_point(&self, name: &str) -> Option<Point> {
        let mut named = self.sites.keys().map(|site| site.point);
        named.find(|point| matches!(point, Point::Named(known) if *known == name))
    }

    /// Returns a key by which edges sort in the order in which they are computed: the inner edges
    /// of an op come before its output.
    pub(crate) fn order_of(&self, edge: EdgeId) -> impl Ord + use<> {
        let producer = self.edges[edge].producer;
        (producer, self.ops[producer].kind.outputs().contains(&edge), edge)
    }

    /// Returns the last op that reads an edge, or its producer if none does.
    pub fn last_use(&self, edge: EdgeId) -> usize {
        self.last_use[edge]
    }

    /// Returns the edges whose last reader is op `index`.
    pub fn dead_after(&self, index: usize) -> &[EdgeId] {
        &self.dead_after[index]
    }

    /// Returns the op range of a layer.
    pub fn layer_ops(&self, layer: usize) -> std::ops::Range<usize> {
        self.layer_ops[layer].clone()
    }

    /// Returns the shape of an edge's capture over `tokens` tokens.
    pub fn shape(&self, edge: EdgeId, tokens: usize) -> Vec<usize> {
        let edge = &self.edges[edge];
        match edge.layout {
            Layout::Flat => vec![tokens, edge.width],
            Layout::Heads(heads) => vec![tokens, heads, edge.width / heads],
            Layout::QueryKey => vec![edge.width, tokens, tokens],
        }
    }
}
