//! Attribution graphs: which features, errors and tokens caused a prediction, and through which
//! other features.
//!
//! The graph belongs to a local replacement model: transcoders (or autoencoders) stand for the
//! activations that they reconstruct, with their error as a constant, and the attention weights and
//! the scales of all norms are those of the prompt. In this model every node is a linear function
//! of the earlier ones. The edge from source *s* to target *t* is
//!
//! ```text
//! A[t, s] = activation_s · W_dec_s · J · W_enc_t
//! ```
//!
//! with J the Jacobian from the place that *s* writes to the place that *t* reads. One backward
//! pass per target gives all its edges. Nodes are in the order of circuit-tracer: selected
//! features, errors (by source, then position), tokens, targets.
//!
//! | file | contents |
//! |---|---|
//! | `frozen.rs` | the sources of a model, and the taps that stop gradients |
//! | `attribute.rs` | the graph of a prompt |
//! | `influence.rs` | influence of nodes, scores of the graph, pruning |
//! | `intervene.rs` | runs with chosen feature activations |

mod attribute;
mod frozen;
mod influence;
mod intervene;

pub use attribute::{attribute, unembedding_rows};
pub use influence::{GraphScores, PrunedGraph, graph_scores, node_influence, prune};
pub use intervene::{FeatureEdit, intervene};

use pellucid_engine::Site;

/// How a graph is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOptions {
    /// Largest number of tokens that are targets.
    pub max_logits: usize,
    /// Cumulative probability at which no more tokens are added.
    pub logit_threshold: f32,
    /// Largest number of features in the graph, those of most influence; all active ones if there
    /// are fewer.
    pub max_features: usize,
    /// Backward passes per forward pass.
    pub batch: usize,
    /// Leading positions whose features and errors are left out: 1 for a BOS token, at which
    /// activations are huge and the same in every prompt.
    pub skip_positions: usize,
}

impl Default for GraphOptions {
    fn default() -> GraphOptions {
        GraphOptions { max_logits: 10, logit_threshold: 0.95, max_features: 7500, batch: 16, skip_positions: 0 }
    }
}

/// What the graph explains.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// The most probable next tokens ([`GraphOptions::max_logits`], `logit_threshold`).
    Likely,
    /// These tokens.
    Tokens(Vec<u32>),
    /// The component of the unembedding's input along a direction.
    Direction {
        /// The direction, as wide as the unembedding's input.
        vector: Vec<f32>,
        /// Tokens whose mean probability is the target's weight in influences; 1 without any.
        tokens: Vec<u32>,
    },
}

/// A feature that is active at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveFeature {
    /// Index of its autoencoder in [`Model::saes`](pellucid_engine::Model::saes).
    pub sae: usize,
    /// Layer of the site that the autoencoder reconstructs.
    pub layer: usize,
    /// Position in the prompt.
    pub position: usize,
    /// Index of the feature.
    pub feature: usize,
    /// Its activation.
    pub activation: f32,
}

/// A target of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The token; `None` for a direction.
    pub token: Option<u32>,
    /// Its probability, the weight of its influence.
    pub probability: f32,
}

/// An attribution graph.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributionGraph {
    /// All active features, by site, position and index.
    pub features: Vec<ActiveFeature>,
    /// The features of the graph: indices in `features`, ascending.
    pub selected: Vec<usize>,
    /// The sites with errors: outputs of MLPs and the sites of autoencoders, in forward order.
    pub error_sites: Vec<Site>,
    /// Number of positions of the prompt.
    pub positions: usize,
    /// The targets.
    pub targets: Vec<Target>,
    /// For each node its edges from every node, or nothing for nodes that have none: errors and
    /// tokens.
    pub edges: Vec<Vec<f32>>,
}

impl AttributionGraph {
    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.first_target() + self.targets.len()
    }

    /// The first node that is an error.
    pub fn first_error(&self) -> usize {
        self.selected.len()
    }

    /// The first node that is a token.
    pub fn first_token(&self) -> usize {
        self.first_error() + self.error_sites.len() * self.positions
    }

    /// The first node that is a target.
    pub fn first_target(&self) -> usize {
        self.first_token() + self.positions
    }

    /// The weights of influences: the probability of each target, 0 elsewhere.
    pub fn target_weights(&self) -> Vec<f32> {
        let mut weights = vec![0.0; self.first_target()];
        weights.extend(self.targets.iter().map(|target| target.probability));
        weights
    }

    /// The edges that are not zero: target, source, weight.
    pub fn nonzero_edges(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
        let of_target = |(target, edges): (usize, &Vec<f32>)| {
            let edges: Vec<(usize, usize, f32)> =
                edges.iter().enumerate().filter(|(_, x)| **x != 0.0).map(|(source, &x)| (target, source, x)).collect();
            edges
        };
        self.edges.iter().enumerate().flat_map(of_target)
    }
}
