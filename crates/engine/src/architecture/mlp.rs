//! MLPs and mixtures of experts as data.

use super::Norm;
use pellucid_kernels::activation::Activation;
use serde::{Deserialize, Serialize};

/// An MLP sublayer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Mlp {
    /// One MLP for every token.
    Dense(Dense),
    /// Mixture of experts.
    Experts(Experts),
    /// RWKV's channel mixing.
    ChannelMix {
        /// Number of neurons.
        width: usize,
    },
}

/// Dense MLP: up, activation, down. A gated MLP computes `down(activation(gate(x)) · up(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    /// Number of neurons (`intermediate_size`).
    pub width: usize,
    /// Activation function; of the gate in a gated MLP.
    pub activation: Activation,
    /// xIELU instead of `activation`; it has two learned parameters.
    pub xielu: bool,
    /// Gated MLP.
    pub gated: bool,
    /// Biases on the up and gate projections.
    pub bias: bool,
    /// Bias on the down projection.
    pub down_bias: bool,
    /// Norm of the neurons, before the down projection.
    pub inner_norm: Option<Norm>,
    /// Rank of the per-layer LoRA adapters on the up and gate projections of a shared block.
    pub adapter: Option<usize>,
    /// Scale of the activation's argument.
    pub gate_scale: Option<f32>,
    /// Scale of the down projection's output.
    pub down_scale: Option<f32>,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts per token (`num_experts_per_tok`).
    pub top_k: usize,
    /// The MLP of each expert.
    pub expert: Dense,
    /// How router scores select and weight experts.
    pub routing: Routing,
    /// Shared expert: an MLP that every token also uses.
    pub shared: Option<Shared>,
    /// Projections around experts whose width differs from the residual stream's.
    pub latent: Option<LatentExperts>,
    /// One bias on the sum of the experts' outputs.
    pub sum_bias: bool,
    /// Scale of the sum of experts and shared expert.
    pub scale: Option<f32>,
}

/// Projections into and out of experts that work at another width than the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentExperts {
    /// Input and output width of the experts.
    pub width: usize,
    /// Biases on both projections.
    pub bias: bool,
}

/// Shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The MLP.
    pub mlp: Dense,
    /// Its output is multiplied by `sigmoid(gate(x))`, one scalar per token.
    pub gated: bool,
}

/// How a router selects experts and weights their outputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// Bias on the router.
    pub bias: bool,
    /// `cap · tanh(score / cap)` on the router's logits.
    pub soft_cap: Option<f32>,
    /// Score function, applied before the top-k selection.
    pub scores: Scores,
    /// A learned bias is added to the scores for the selection, but not to the weights
    /// (`e_score_correction_bias`).
    pub correction: bool,
    /// Group-limited routing: only experts of the top groups can be selected.
    pub groups: Option<ExpertGroups>,
    /// How the selected scores become weights.
    pub weights: ExpertWeights,
    /// Scale of the weights (`routed_scaling_factor`).
    pub scale: f32,
    /// Weights multiply an expert's input instead of its output (Llama 4).
    pub on_input: bool,
}

/// Score function of a router, applied before the top-k selection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scores {
    /// The logits themselves.
    Raw,
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// SparseMixer (Phi-MoE): sequential selections, each a softmax over the experts whose logit is
    /// within a relative distance of `2 · tolerance` of the best remaining one.
    SparseMixer {
        /// The tolerance (`router_jitter_noise`).
        tolerance: f32,
    },
}

/// Groups of experts for group-limited routing (DeepSeek).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups (`n_group`).
    pub count: usize,
    /// Groups that stay eligible per token (`topk_group`).
    pub top_groups: usize,
    /// A group's score is the sum of its two best experts' scores instead of the best one's.
    pub by_top_two: bool,
}

/// How the selected experts' scores become weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ExpertWeights {
    /// The scores themselves.
    Scores,
    /// Divided by `max(sum + eps, min_divisor)`.
    SumNormalized {
        /// Added to the sum.
        eps: f32,
        /// Minimum divisor.
        min_divisor: f32,
    },
    /// Divided by their p-norm (DBRX).
    PNormNormalized {
        /// The exponent p.
        power: f32,
    },
    /// Softmax over the selected scores.
    Softmax,
    /// Sigmoid of each score.
    Sigmoid {
        /// Divided by their sum afterwards.
        normalized: bool,
    },
}

impl Dense {
    /// Returns an ungated MLP without biases.
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

    /// Returns a gated MLP without biases.
    pub fn gated(width: usize, activation: Activation) -> Dense {
        Dense { gated: true, ..Dense::plain(width, activation) }
    }

    /// Returns this MLP with or without biases on all projections.
    pub fn with_bias(self, bias: bool) -> Dense {
        Dense { bias, down_bias: bias, ..self }
    }
}

impl Experts {
    /// Returns experts without a shared expert, latent width, bias or scale.
    pub fn new(count: usize, top_k: usize, expert: Dense, routing: Routing) -> Experts {
        Experts { count, top_k, expert, routing, shared: None, latent: None, sum_bias: false, scale: None }
    }
}

impl Routing {
    /// Returns plain top-k routing: no bias, cap, correction, groups or scale.
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

    /// Returns softmax routing; `renormalize` divides the selected weights by their sum.
    pub fn softmax(renormalize: bool) -> Routing {
        Routing::new(Scores::Softmax, if renormalize { ExpertWeights::SUM_NORMALIZED } else { ExpertWeights::Scores })
    }
}

impl ExpertWeights {
    /// Divided by their sum.
    pub const SUM_NORMALIZED: ExpertWeights = ExpertWeights::SumNormalized { eps: 0.0, min_divisor: 0.0 };
}
