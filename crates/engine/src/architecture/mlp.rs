//! MLPs and experts as data.

use super::Norm;
use pellucid_kernels::activation::Activation;

/// An MLP sublayer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// The same neurons for every token.
    Dense(Dense),
    /// A router and experts.
    Experts(Experts),
    /// RWKV's channel mixing.
    ChannelMix {
        /// Neurons.
        width: usize,
    },
}

/// Neurons: up, activation, down; a gated MLP multiplies the activated branch by a second one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Neurons.
    pub width: usize,
    /// Their activation function, of the gate where there is one.
    pub activation: Activation,
    /// The activation is xIELU instead, which has two learned numbers.
    pub xielu: bool,
    /// There is a second branch.
    pub gated: bool,
    /// Whether the projections to the neurons have biases.
    pub bias: bool,
    /// Whether the projection from the neurons has one.
    pub down_bias: bool,
    /// A norm of the neurons.
    pub inner_norm: Option<Norm>,
    /// The projections to the neurons each have a second one through this width, one for each layer that shares them.
    pub adapter: Option<usize>,
    /// What the activation's argument is multiplied by.
    pub gate_scale: Option<f32>,
    /// What the projection from the neurons is multiplied by.
    pub down_scale: Option<f32>,
}

/// Experts and how tokens choose them.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many.
    pub count: usize,
    /// How many of them a token uses.
    pub chosen: usize,
    /// What each of them is.
    pub expert: Dense,
    /// How scores become choices and weights.
    pub routing: Routing,
    /// An MLP that every token uses besides.
    pub shared: Option<Shared>,
    /// The experts read and write a stream of this width, between two projections.
    pub latent: Option<LatentExperts>,
    /// Whether one bias is added to the sum of the experts.
    pub sum_bias: bool,
    /// Experts' and shared output together are multiplied by this.
    pub scale: Option<f32>,
}

/// Projections around experts of another width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentExperts {
    /// Their width.
    pub width: usize,
    /// Whether the projections have biases.
    pub bias: bool,
}

/// What every token uses beside its experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shared {
    /// The MLP.
    pub mlp: Dense,
    /// Its output is multiplied by the sigmoid of a learned number.
    pub gated: bool,
}

/// How a router's scores become a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Whether the router has a bias.
    pub bias: bool,
    /// `cap · tanh(score / cap)` on the router's scores.
    pub soft_cap: Option<f32>,
    /// What the router's scores become before the choice.
    pub scores: Scores,
    /// A learned correction is added for the choice, and not to the weights.
    pub correction: bool,
    /// Only experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    /// What the chosen scores become.
    pub weights: ExpertWeights,
    /// What the weights are multiplied by.
    pub scale: f32,
    /// Weights multiply an expert's input instead of its output.
    pub on_input: bool,
}

/// What a router's scores become before the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// They stay.
    Raw,
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// Two choices one after the other, each a softmax over the experts that come within `2 · tolerance` of the best left.
    SparseMixer {
        /// The tolerance.
        tolerance: f32,
    },
}

/// Groups of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many.
    pub count: usize,
    /// How many are kept.
    pub kept: usize,
    /// A group is judged by the sum of its two best experts instead of its best.
    pub by_best_two: bool,
}

/// What the chosen experts' scores become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertWeights {
    /// They stay.
    Scores,
    /// Divided by their sum plus a little, or by `least` where that is more.
    Shares {
        /// Added to the sum.
        eps: f32,
        /// The least divisor.
        least: f32,
    },
    /// Divided by their norm of this power.
    Normed {
        /// The power.
        power: f32,
    },
    /// Softmax over the chosen.
    Softmax,
    /// The sigmoid of each.
    Sigmoid {
        /// Divided by their sum then.
        shares: bool,
    },
}

impl Dense {
    /// Up, activation, down, without biases.
    pub fn plain(width: usize, activation: Activation) -> Dense {
        Dense {
            width,
            activation,
            gated: false,
            bias: false,
            down_bias: false,
            xielu: false,
            inner_norm: None,
            adapter: None,
            gate_scale: None,
            down_scale: None,
        }
    }

    /// Gate and up, activation of the gate times up, down, without biases.
    pub fn gated(width: usize, activation: Activation) -> Dense {
        Dense { gated: true, ..Dense::plain(width, activation) }
    }

    /// The same with or without biases on all projections.
    pub fn with_bias(self, bias: bool) -> Dense {
        Dense { bias, down_bias: bias, ..self }
    }
}

impl Experts {
    /// Experts without anything besides.
    pub fn new(count: usize, chosen: usize, expert: Dense, routing: Routing) -> Experts {
        Experts { count, chosen, expert, routing, shared: None, latent: None, sum_bias: false, scale: None }
    }
}

impl Routing {
    /// Scores as they are, chosen and weighted in the given ways.
    pub fn new(scores: Scores, weights: ExpertWeights) -> Routing {
        Routing {
            bias: false,
            soft_cap: None,
            scores,
            correction: false,
            groups: None,
            weights,
            scale: 1.0,
            on_input: false,
        }
    }

    /// Softmax over all experts; the chosen weights as they are, or divided by their sum.
    pub fn softmax(renormalise: bool) -> Routing {
        Routing::new(Scores::Softmax, if renormalise { ExpertWeights::SHARES } else { ExpertWeights::Scores })
    }
}

impl ExpertWeights {
    /// Divided by their sum.
    pub const SHARES: ExpertWeights = ExpertWeights::Shares { eps: 0.0, least: 0.0 };
}
